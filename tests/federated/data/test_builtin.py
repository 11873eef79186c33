"""Built-in data sets load what their files hold, and say which file is wrong."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpilot.federated.data import DataError, load

Bytes = NDArray[np.uint8]


def idx_bytes(array: Bytes) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def images(count: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(256, size=(count, 5, 4), dtype=np.uint8)


def write_idx(folder: Path, *, prefix: str = "", test: str = "t10k", packed: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 6), (test, 3)):
        for what, array in (
            ("images-idx3", images(count)),
            ("labels-idx1", np.arange(count, dtype=np.uint8) % 5),
        ):
            name, content = f"{prefix}{part}-{what}-ubyte", idx_bytes(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def cifar_records(count: int, labels: int) -> Bytes:
    records = np.random.default_rng(labels).integers(
        256, size=(count, labels + 3072), dtype=np.uint8
    )
    for column in range(labels):
        records[:, column] = (np.arange(count) + column) % 10
    return records


def write_cifar10(folder: Path) -> list[Bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [cifar_records(2, 1) for _ in range(5)]
    for number, batch in enumerate(batches, start=1):
        batch.tofile(folder / f"data_batch_{number}.bin")
    cifar_records(3, 1).tofile(folder / "test_batch.bin")
    return batches


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cifar_records(7, 2).tofile(folder / "train.bin")
    cifar_records(3, 2).tofile(folder / "test.bin")


def test_digits_are_there_without_a_download() -> None:
    flat = load("digits")
    assert (flat.x.shape, flat.x.dtype.name, flat.num_classes) == ((1797, 64), "float32", 10)
    assert (flat.x.min(), flat.x.max()) == (0.0, 1.0)
    square = load("digits", {"image": True, "dtype": "float64"})
    assert (square.input_shape, square.x.dtype.name) == ((1, 8, 8), "float64")
    assert square.x.reshape(-1, 64).tolist() == flat.x.tolist()


def test_synthetic_data_are_as_asked() -> None:
    made = load("synthetic", {"samples": 103, "classes": 4, "shape": [2, 3, 3], "seed": 5})
    assert (made.x.shape, made.x.dtype.name, made.num_classes) == ((103, 2, 3, 3), "float32", 4)
    assert sorted(np.bincount(made.y).tolist()) == [25, 26, 26, 26]
    assert load("synthetic", {"features": 7}).input_shape == (7,)
    assert load("synthetic", {"dtype": "float64"}).x.dtype == np.float64


def test_synthetic_data_come_back_from_their_options() -> None:
    options = {"samples": 50, "seed": 3}
    assert load("synthetic", options).digest == load("synthetic", options).digest
    assert load("synthetic", options).digest != load("synthetic", {**options, "seed": 4}).digest


def test_synthetic_classes_are_clouds_around_their_templates() -> None:
    still = load("synthetic", {"samples": 40, "noise": 0, "classes": 3})
    assert len(np.unique(still.x, axis=0)) == 3
    noisy = load("synthetic", {"samples": 40, "noise": 0.1, "classes": 3})
    assert noisy.y.tolist() == still.y.tolist()
    assert float(np.std(noisy.x - still.x)) == pytest.approx(0.1, rel=0.1)


def test_synthetic_data_of_pinned_options_stay_as_they_are() -> None:
    made = load("synthetic", {"samples": 50, "seed": 3})
    assert made.digest == "018b34dd5803746a69cfa16d9336d0295b3043278baedf0f6bbf18c142f1d630"


def test_synthetic_tokens_are_as_asked() -> None:
    made = load("synthetic", {"samples": 103, "vocabulary": 9, "sequence_length": 5, "classes": 4})
    assert (made.x.shape, made.x.dtype.name, made.num_classes) == ((103, 5), "int64", 4)
    assert sorted(np.unique(made.x).tolist()) == list(range(9))
    assert sorted(np.bincount(made.y).tolist()) == [25, 26, 26, 26]
    assert load("synthetic", {"vocabulary": 256}).input_shape == (64,)


def test_synthetic_tokens_come_back_from_their_options() -> None:
    options = {"samples": 50, "vocabulary": 256, "seed": 3}
    assert load("synthetic", options).digest == load("synthetic", options).digest
    assert load("synthetic", options).digest != load("synthetic", {**options, "seed": 4}).digest
    made = load("synthetic", options)
    assert made.digest == "029f3fb5c56cd8bd45ff1a316209d1bd93532cab9c1c17d0ad29ee67fbf2c96e"


def test_synthetic_texts_are_those_of_their_class_but_for_the_noise() -> None:
    options = {"samples": 200, "vocabulary": 1000, "classes": 3}
    still = load("synthetic", {**options, "noise": 0})
    assert len(np.unique(still.x, axis=0)) == 3
    noisy = load("synthetic", {**options, "noise": 3})
    assert noisy.y.tolist() == still.y.tolist()
    assert float(np.mean(noisy.x != still.x)) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({"sequence_length": 8}, "give vocabulary as well", id="a length alone"),
        pytest.param({"vocabulary": 8, "shape": [8]}, "are for numbers", id="tokens in a shape"),
        pytest.param({"vocabulary": 8, "dtype": "float64"}, "are for numbers", id="real tokens"),
    ],
)
def test_synthetic_tokens_and_numbers_do_not_mix(options: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        load("synthetic", options)


@pytest.mark.parametrize(
    "options",
    [
        *({"samples": 0}, {"classes": 0}, {"features": 0}, {"shape": []}, {"shape": [3, 0]}),
        *({"vocabulary": 0}, {"vocabulary": 8, "sequence_length": 0}),
    ],
)
def test_synthetic_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="all above 0"):
        load("synthetic", options)


@pytest.mark.parametrize("noise", [-1, float("nan"), float("inf")])
def test_noise_that_is_none_is_refused(noise: float) -> None:
    with pytest.raises(DataError, match="noise is 0 or more"):
        load("synthetic", {"noise": noise})


def test_an_npz_file_is_loaded_whole(tmp_path: Path) -> None:
    path = tmp_path / "patients.npz"
    np.savez(
        path,
        x=np.arange(12.0).reshape(6, 2),
        y=np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        client_ids=np.array([7, 7, 7, 12, 12, 12]),
        test_x=np.zeros((1, 2)),
        test_y=np.array([4]),
    )
    found = load("npz", {"path": str(path)})
    assert (found.name, found.x.dtype.name, found.y.dtype.name) == ("patients", "float32", "int64")
    assert found.num_classes == 5
    assert found.client_ids is not None
    assert found.client_ids.tolist() == ["7"] * 3 + ["12"] * 3
    assert found.test_y is not None
    assert found.test_y.tolist() == [4]
    wide = load("npz", {"path": path, "dtype": "float64", "num_classes": 9})
    assert (wide.x.dtype.name, wide.num_classes) == ("float64", 9)


def test_columns_of_an_npz_file_are_kept_as_text(tmp_path: Path) -> None:
    wards = np.arange(len(Y)) % 2
    np.savez(tmp_path / "a.npz", x=X, y=Y, ward=wards, floor=wards.astype("S"))
    found = load("npz", {"path": tmp_path / "a.npz", "columns": ["ward", "floor"]})
    assert found.columns["ward"].tolist() == list(map(str, wards.tolist()))
    assert found.columns["floor"].tolist() == found.columns["ward"].tolist()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({}, "has an array 'ward'", id="one that is not named"),
        pytest.param({"columns": ["ward", "floor"]}, "has no column floor", id="none of the name"),
        pytest.param({"columns": ["ward"]}, "ward in .* is text or integers", id="numbers"),
    ],
)
def test_columns_of_an_npz_file_that_cannot_be_are_refused(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, ward=np.linspace(0, 1, len(Y)))
    with pytest.raises(DataError, match=told):
        load("npz", {"path": tmp_path / "a.npz", **options})


@pytest.mark.parametrize(
    ("stored", "dtype", "held"),
    [
        pytest.param("int64", None, "int64", id="integers are tokens"),
        pytest.param("uint16", None, "int64", id="short integers are tokens"),
        pytest.param("uint8", None, "float32", id="bytes are pixels"),
        pytest.param("bool", None, "float32", id="truths are numbers"),
        pytest.param("float64", None, "float32", id="numbers are numbers"),
        pytest.param("int64", "float32", "float32", id="integers are numbers if said so"),
        pytest.param("uint8", "int64", "int64", id="bytes are tokens if said so"),
        pytest.param("uint8", "float64", "float64", id="bytes are wide if said so"),
    ],
)
def test_samples_of_an_npz_file_are_numbers_or_tokens(
    tmp_path: Path, stored: str, dtype: str | None, held: str
) -> None:
    x = np.arange(6).reshape(3, 2).astype(stored)
    np.savez(tmp_path / "a.npz", x=x, y=Y, test_x=x, test_y=Y)
    found = load("npz", {"path": tmp_path / "a.npz", **({"dtype": dtype} if dtype else {})})
    assert found.x.dtype == held
    assert found.test_x is not None
    assert found.x.tolist() == found.test_x.tolist() == x.tolist()


def test_test_samples_of_an_npz_file_become_what_the_others_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, test_x=X.astype(np.int64), test_y=Y)
    found = load("npz", {"path": tmp_path / "a.npz"})
    assert found.test_x is not None
    assert found.test_x.dtype == np.float32


def test_numbers_of_an_npz_file_are_not_cut_to_tokens(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(DataError, match=r"x in .*a\.npz is integers for int64, found float64"):
        load("npz", {"path": tmp_path / "a.npz", "dtype": "int64"})


X, Y = np.ones((3, 2)), np.arange(3)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        pytest.param({"x": X}, "has no y, it has x", id="labels are missing"),
        pytest.param({}, "has no x, y, it has none", id="everything is missing"),
        pytest.param(
            {"x": X, "y": Y, "client_id": Y},
            r"'client_id' \(did you mean 'client_ids'\?\)",
            id="an array is misspelt",
        ),
        pytest.param({"x": X, "y": Y / 2}, "y in .* is integers", id="labels are fractions"),
        pytest.param({"x": X, "y": Y[:2]}, r"y is int64 of shape \(3,\)", id="a label is missing"),
        pytest.param({"x": X.astype(str), "y": Y}, "x in .* is numbers", id="x is text"),
        pytest.param({"x": X * 1e300, "y": Y}, "x is not finite in sample 0", id="x overflows"),
        pytest.param({"x": X, "y": Y, "client_ids": X}, "text or integers", id="ids are real"),
        pytest.param({"x": X[:0], "y": Y[:0]}, "labelled samples", id="there is nothing"),
        pytest.param(
            {"x": X, "y": np.array([None, 1, 2])}, "cannot read .* allow_pickle", id="pickles"
        ),
    ],
)
def test_an_npz_file_of_something_else_is_refused(
    tmp_path: Path, arrays: dict[str, Any], told: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=told):
        load("npz", {"path": tmp_path / "a.npz"})


def test_a_damaged_or_missing_npz_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(DataError, match=r"there is no file .*a\.npz: write one with numpy\.savez"):
        load("npz", {"path": path})
    np.savez(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"cannot read .*a\.npz"):
        load("npz", {"path": path})
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot read .*a\.npz"):
        load("npz", {"path": path})
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match=r"a\.npz is not an \.npz file"):
        load("npz", {"path": path})
    with pytest.raises(DataError, match="cannot read"):
        load("npz", {"path": tmp_path})


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_idx_files_are_loaded_as_images(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path / "mnist", packed=packed)
    found = load("idx", {"path": tmp_path / "mnist"})
    assert (found.name, found.x.shape, found.x.dtype.name) == ("mnist", (6, 1, 5, 4), "float32")
    assert np.array_equal(found.x[:, 0] * np.float32(255), images(6).astype(np.float32))
    assert (found.y.tolist(), found.num_classes) == ([0, 1, 2, 3, 4, 0], 5)
    assert found.test_x is not None
    assert found.test_x.shape == (3, 1, 5, 4)


def test_emnist_has_a_prefix_and_is_turned(tmp_path: Path) -> None:
    write_idx(tmp_path, prefix="emnist-balanced-", test="test")
    found = load("idx", {"path": tmp_path, "prefix": "emnist-balanced", "transpose": True})
    assert (found.name, found.input_shape) == ("emnist-balanced", (1, 4, 5))
    upright = (images(6) / np.float32(255)).swapaxes(1, 2)
    assert np.allclose(found.x[:, 0], upright)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda good: good[:-1], "promises 120 bytes .*, 119 follow", id="cut short"),
        pytest.param(lambda good: good + b"x", "120 bytes .*, more follow", id="too long"),
        pytest.param(lambda good: b"", "begins with nothing", id="empty"),
        pytest.param(lambda good: good[:9], "ends within its header", id="half a header"),
        pytest.param(
            lambda good: b"\0\0\x0d\3" + good[4:],
            "begins with 00000d03, expected 00000803",
            id="other numbers",
        ),
        pytest.param(
            lambda good: good[:4] + b"\xff" * 12 + good[16:], "120 follow", id="a huge promise"
        ),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(
    tmp_path: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte .*{told}"):
        load("idx", {"path": tmp_path})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda good: good[:-9], id="cut short"),
        pytest.param(lambda good: b"no gzip" + good, id="not packed"),
        pytest.param(lambda good: good[:12] + b"\xff" * 40 + good[52:], id="scrambled"),
    ],
)
def test_a_damaged_gz_file_is_refused_by_name(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    write_idx(tmp_path, packed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"cannot read .*t10k-images-idx3-ubyte\.gz"):
        load("idx", {"path": tmp_path})


def test_images_without_as_many_labels_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path)
    labels = idx_bytes(np.zeros(5, dtype=np.uint8))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(DataError, match=r"y is int64 of shape \(6,\), found int64 of shape \(5,\)"):
        load("idx", {"path": tmp_path})


def test_cifar10_is_five_batches_and_a_test(tmp_path: Path) -> None:
    batches = write_cifar10(tmp_path / "cifar-10-batches-bin")
    found = load("cifar10", {"path": tmp_path})
    assert (found.x.shape, found.x.dtype.name, found.num_classes) == (
        (10, 3, 32, 32),
        "float32",
        10,
    )
    assert found.y.tolist() == [0, 1] * 5
    pixels = np.concatenate(batches)[:, 1:].reshape(-1, 3, 32, 32)
    assert np.array_equal(found.x, pixels / np.float32(255))
    assert found.test_y is not None
    assert found.test_y.tolist() == [0, 1, 2]
    assert load("cifar10", {"path": tmp_path / "cifar-10-batches-bin"}).digest == found.digest


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    fine = load("cifar100", {"path": tmp_path})
    coarse = load("cifar100", {"path": tmp_path, "labels": "coarse"})
    assert (fine.num_classes, fine.y.tolist()) == (100, [1, 2, 3, 4, 5, 6, 7])
    assert (coarse.num_classes, coarse.y.tolist()) == (20, [0, 1, 2, 3, 4, 5, 6])
    assert np.array_equal(fine.x, coarse.x)


@pytest.mark.parametrize("left", [0, 3072, 3074])
def test_a_cifar_file_cut_within_a_record_is_refused_by_name(tmp_path: Path, left: int) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match=rf"data_batch_3\.bin has {left} bytes"):
        load("cifar10", {"path": tmp_path})


@pytest.mark.parametrize(
    ("name", "write", "lost"),
    [
        pytest.param("idx", write_idx, "t10k-labels-idx1-ubyte", id="idx"),
        pytest.param("cifar10", write_cifar10, "data_batch_5.bin", id="cifar10"),
        pytest.param("cifar100", write_cifar100, "test.bin", id="cifar100"),
    ],
)
def test_a_missing_file_or_folder_is_named_with_where_to_get_it(
    tmp_path: Path, name: str, write: Callable[[Path], object], lost: str
) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere; .*https://"):
        load(name, {"path": tmp_path / "nowhere"})
    write(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(DataError, match=rf"has no {lost}.*such files come from .*https://"):
        load(name, {"path": tmp_path})
