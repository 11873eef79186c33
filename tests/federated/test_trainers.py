"""A trial finds the fastest way that gives the right results, and says why it is this one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clients import CLASSES, CPU, FEATURES, Clients, dense, numbers
from fedpilot.federated.config.schema import Training
from fedpilot.federated.core.execution import Choice, Execution, Kind, Question
from fedpilot.federated.engine import trainers as trainers_module, trial_cache
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.trainers import SEQUENTIAL_CHUNK, Trainers

PLENTY = 1 << 34
Make = Callable[[], nn.Module]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def question(kind: str | None = None, chunk_size: int | None = None, cohort: int = 8) -> Question:
    return Question(None if kind is None else Kind(kind), chunk_size, cohort)


def clients(make: Make = dense, sizes: tuple[int, ...] = (12,) * 8, **training: Any) -> Clients:
    return Clients(make, sizes=sizes, training=training)


def try_out(of: Clients, asked: Question, memory: int = PLENTY) -> Choice:
    return of.trainers.try_out(asked, np.arange(len(of.sizes)), memory)


KINDS = {
    "SequentialTrainer": "sequential",
    "FoldedModule": "folded",
    "MappedModule": "mapped",
    "CompiledTrainer": "compiled",
}


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a step costs, by kind: a stopwatch that tests set."""
    found = {"sequential": 1e-3, "folded": 1e-4, "mapped": 1e-3, "compiled": 1e-3, "call": 0.0}

    def time_of(trainer: Any, chunk: Any, model: Any) -> float:
        kind = KINDS[type(getattr(trainer, "_stacked", trainer)).__name__]
        for _ in trainer.train(chunk, 0, model, {}):
            pass
        steps = int((-(-chunk.sizes // trainer._training.batch_size)).sum())
        return found["call"] + found[kind] * steps

    monkeypatch.setattr(trainers_module, "_time", time_of)
    return found


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))


def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES))


class Mixing(nn.Module):
    """Its samples see each other, and no layer tells."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


def bare_batch_norm() -> nn.Module:
    """Batch statistics without a parameter or buffer."""
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    return nn.Sequential(nn.Linear(FEATURES, 4), norm, nn.Linear(4, CLASSES))


class Counting(nn.Module):
    """Training changes its buffer."""

    def __init__(self, *, kept: bool = True, used: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.used = used
        self.register_buffer("seen", torch.ones(()), persistent=kept)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        out = self.linear(x)
        return out * self.seen if self.used else out


class Scaled(nn.Module):
    """Has a parameter of its own, so that it maps and does not fold."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.heat = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.heat


# -- auto -------------------------------------------------------------------------------------


def test_the_fastest_is_chosen(seconds: dict[str, float]) -> None:
    assert try_out(clients(), question()) == Choice(
        Execution(Kind.FOLDED, 2), "10.0x as fast as one by one"
    ), "of equally fast sizes the smaller"
    seconds["call"] = 1e-3  # what a call costs is shared by a larger chunk
    assert try_out(clients(), question()).execution == Execution(Kind.FOLDED, 8)
    seconds |= {"call": 0.0, "folded": 9e-4}
    found = try_out(clients(), question())
    assert found.execution == Execution(Kind.SEQUENTIAL, SEQUENTIAL_CHUNK)
    assert found.reason == "several at once are 1.1x as fast, not worth it"


@pytest.mark.parametrize(
    ("compiled", "folded", "mapped", "choice"),
    [
        pytest.param(
            5e-5, 1e-4, 1e-6, Choice(Execution(Kind.COMPILED, 2), "20.0x as fast as one by one"),
            id="compiled; what folds is not mapped as well",
        ),
        pytest.param(
            2e-4, 1e-4, 1e-6, Choice(Execution(Kind.FOLDED, 2), "10.0x as fast as one by one"),
            id="folded, though compiled beats one by one",
        ),
        pytest.param(
            1e-4, 9e-4, 1e-6, Choice(Execution(Kind.COMPILED, 2), "10.0x as fast as one by one"),
            id="compiled, where folding is not worth it",
        ),
        pytest.param(
            9e-4, 9.5e-4, 1e-6,
            Choice(
                Execution(Kind.SEQUENTIAL, SEQUENTIAL_CHUNK),
                "several at once are 1.1x as fast, not worth it",
            ),
            id="neither is worth it",
        ),
    ],
)  # fmt: skip
def test_compiling_and_folding_are_measured_against_each_other(
    compiled: float, folded: float, mapped: float, choice: Choice, seconds: dict[str, float]
) -> None:
    seconds |= {"compiled": compiled, "folded": folded, "mapped": mapped}
    assert try_out(clients(), question()) == choice


def test_of_what_is_compiled_the_size_comes_from_the_trial_too(seconds: dict[str, float]) -> None:
    seconds |= {"compiled": 5e-5, "call": 1e-3}
    assert try_out(clients(), question()).execution == Execution(Kind.COMPILED, 8)


def test_what_is_refused_does_not_keep_others_from_being_chosen(seconds: dict[str, float]) -> None:
    """Compiled cannot be, folded neither; mapped is measured then."""
    seconds |= {"compiled": 1e-6, "folded": 1e-6, "mapped": 2e-4}
    assert try_out(clients(Scaled), question()).execution.kind is Kind.MAPPED
    seconds |= {"folded": 2e-4, "mapped": 1e-6}
    assert try_out(clients(layer_norm), question()).execution.kind is Kind.FOLDED


def test_what_is_fastest_and_wrong_gives_way_to_the_next(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right one that is fastest is taken, and nothing that was never compared."""
    seconds |= {"compiled": 5e-5, "folded": 1e-4}
    checked: list[Execution] = []
    check = Trainers._check

    def watched(self: Trainers, execution: Execution, *rest: Any) -> None:
        checked.append(execution)
        if execution.kind is Kind.COMPILED:
            raise NotStackable("no")
        check(self, execution, *rest)

    monkeypatch.setattr(Trainers, "_check", watched)
    found = try_out(clients(), question())
    assert found == Choice(Execution(Kind.FOLDED, 2), "10.0x as fast as one by one")
    assert checked == [Execution(Kind.COMPILED, 2), Execution(Kind.FOLDED, 2)]


def test_what_does_not_fold_is_mapped_if_that_is_faster(seconds: dict[str, float]) -> None:
    assert try_out(clients(Scaled), question()).execution.kind is Kind.SEQUENTIAL
    seconds["mapped"] = 2e-4
    found = try_out(clients(Scaled), question())
    assert (found.execution.kind, found.reason) == (Kind.MAPPED, "5.0x as fast as one by one")


def test_unequal_clients_are_compared_by_their_steps(seconds: dict[str, float]) -> None:
    """The largest client alone is no measure of many small ones together."""
    seconds["folded"] = seconds["sequential"]
    unequal = clients(sizes=(12, 1, 1, 1, 1, 1, 1, 1))
    assert try_out(unequal, question()).execution.kind is Kind.SEQUENTIAL
    seconds["folded"] = seconds["sequential"] / 5
    assert try_out(unequal, question()).execution == Execution(Kind.FOLDED, 2), "equally fast"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(
            batch_norm,
            ["compiled: 1 is no part", "folded: 1 (BatchNorm1d) has", "mapped: vmap"],
            id="batch norm",
        ),
        pytest.param(
            bare_batch_norm,
            ["compiled: 1 is no part", "folded: ", "mapped: "],
            id="batch statistics without a trace",
        ),
        pytest.param(
            Mixing,
            ["compiled: it is more", "folded: ", "mapped: samples of a batch influence"],
            id="samples that mix",
        ),
        pytest.param(
            Counting, ["compiled: ", "folded: training changes seen", "mapped: "], id="a buffer"
        ),
        pytest.param(
            lambda: Counting(kept=False, used=True),
            ["compiled: ", "folded: a client's bits depend", "mapped: "],
            id="a buffer that is not saved",
        ),
    ],
)  # fmt: skip
def test_what_would_come_out_otherwise_is_trained_one_by_one(
    make: Make, words: list[str], seconds: dict[str, float]
) -> None:
    seconds |= {"mapped": 1e-4, "compiled": 1e-5}
    found = try_out(clients(make), question())
    assert found.execution == Execution(Kind.SEQUENTIAL, SEQUENTIAL_CHUNK)
    for each in words:
        assert each in found.reason


def an_update(_client: Any) -> None:
    """A way of training of one's own."""


def a_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss of one's own."""
    return nn.functional.cross_entropy(outputs, labels)


def test_own_code_that_sees_one_client_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers_module, "_time", lambda *_: pytest.fail("it was tried"))
    updating = Clients(sizes=(5,) * 4, update=an_update)
    found = try_out(updating, question())
    assert (found.execution.kind, "client_update" in found.reason) == (Kind.SEQUENTIAL, True)
    losing = Clients(sizes=(5,) * 4)
    losing.resident.loss = a_loss
    found = try_out(losing, question())
    assert (found.execution.kind, "loss_function" in found.reason) == (Kind.SEQUENTIAL, True)
    for own in (updating, losing):
        with pytest.raises(NotStackable, match="one client"):
            try_out(own, question("folded"))
        with pytest.raises(NotStackable, match="one client"):
            own.trainers.get(Execution(Kind.MAPPED, 4))
        with pytest.raises(NotStackable, match="one client"):
            try_out(own, question("compiled"))


def test_a_client_that_is_work_enough_is_not_tried_in_company(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds["sequential"] = 1.0
    monkeypatch.setattr(Trainers, "_measure", lambda *_: pytest.fail("it was tried"))
    found = try_out(clients(), question())
    assert found.execution.kind is Kind.SEQUENTIAL
    assert found.reason == "a client is work enough by itself: 3.0 s for a few steps of one client"


def test_a_client_whose_training_raises_is_left_to_its_round() -> None:
    class Raising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise ValueError("no")
            return self.linear(x)

    found = try_out(clients(Raising), question())
    assert found.execution.kind is Kind.SEQUENTIAL
    assert found.reason == "the trial failed: ValueError: no"


def test_code_that_fails_for_many_only_is_trained_one_by_one(seconds: dict[str, float]) -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if not isinstance(x, torch.fx.Proxy) and len(x) > 4:
                raise KeyError("too many")
            return self.linear(x)

    found = try_out(clients(Sized), question())
    assert found.execution.kind is Kind.SEQUENTIAL or found.execution.kind is Kind.MAPPED
    with pytest.raises(NotStackable, match="KeyError: 'too many'"):
        try_out(clients(Sized), question("folded", 4))


# -- by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sequential", "folded", "mapped", "compiled"])
def test_a_way_that_is_named_is_taken(kind: str, seconds: dict[str, float]) -> None:
    seconds |= {"folded": 1.0, "mapped": 1.0, "compiled": 1.0}  # however slow
    found = try_out(clients(), question(kind, 5))
    assert found == Choice(Execution(Kind(kind), 5), "as the configuration says")


def test_the_chunk_size_of_a_named_way_comes_from_the_trial(seconds: dict[str, float]) -> None:
    for kind in ("folded", "compiled"):
        seconds["call"] = 1e-3
        assert try_out(clients(), question(kind)).execution.chunk_size == 8
        seconds["call"] = 0.0
        assert try_out(clients(), question(kind)).execution.chunk_size == 2
    sequential = try_out(clients(), question("sequential")).execution
    assert sequential.chunk_size == SEQUENTIAL_CHUNK


@pytest.mark.parametrize("kind", ["folded", "mapped", "compiled"])
@pytest.mark.parametrize("make", [batch_norm, bare_batch_norm, Mixing, Counting])
@pytest.mark.parametrize("size", [12, 100], ids=["whole batches", "many batches"])
def test_a_way_that_is_named_and_wrong_is_refused(kind: str, make: Make, size: int) -> None:
    with pytest.raises(NotStackable):
        try_out(clients(make, sizes=(size,) * 4), question(kind, 4))


def test_a_chunk_fits_into_a_part_of_the_memory(seconds: dict[str, float]) -> None:
    seconds["call"] = 1e-3
    many = clients(sizes=(4,) * 64)
    sizes = [
        try_out(many, question("folded", cohort=64), memory).execution.chunk_size
        for memory in (1 << 10, 1 << 14, 1 << 16, 1 << 20)
    ]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 64)
    assert 1 < sizes[1] < 64


# -- it leaves no trace -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense, batch_norm, Counting, Scaled])
def test_what_comes_after_is_as_without_a_trial(make: Make) -> None:
    expected = {c: after.bits for c, after in clients(make).train().items()}
    tried = clients(make)
    try_out(tried, question())
    assert {c: after.bits for c, after in tried.train().items()} == expected


# -- what is remembered -----------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedpilot" / "executions"


CHOICE = Choice(Execution(Kind.FOLDED, 64), "because")


def test_a_choice_is_remembered(cache: Path) -> None:
    assert trial_cache.recall("a") is None
    trial_cache.remember("a", CHOICE)
    assert trial_cache.recall("a") == CHOICE
    assert trial_cache.recall("b") is None
    assert [path.name for path in cache.iterdir()] == ["a.json"], "nothing beside it"
    other = Choice(Execution(Kind.SEQUENTIAL, 1), "")
    trial_cache.remember("a", other)
    assert trial_cache.recall("a") == other


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="nothing"),
        pytest.param(b'{"kind": "folded"}', id="half of it"),
        pytest.param(b'{"kind": "upside down", "chunk_size": 3, "reason": ""}', id="unknown"),
        pytest.param(b'{"kind": "folded", "chunk_size": null, "reason": ""}', id="no size"),
        pytest.param(b'{"kind": "folded", "chunk_size": 0, "reason": ""}', id="size zero"),
    ],
)
def test_a_file_that_is_spoilt_costs_a_trial_only(content: bytes, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "a.json").write_bytes(content)
    assert trial_cache.recall("a") is None
    trial_cache.remember("a", CHOICE)
    assert trial_cache.recall("a") == CHOICE


def test_a_folder_that_cannot_be_written_costs_trials_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    trial_cache.remember("a", CHOICE)
    assert trial_cache.recall("a") is None


FACTS: dict[str, Any] = {
    "input_shape": (FEATURES,), "sizes": [3, 4], "memory": 1 << 30, "device": CPU
}  # fmt: skip


def key(make: Make = dense, asked: Question | None = None, **facts: Any) -> str:
    training = Training(**facts.pop("training", {}))
    return trial_cache.key(make(), training, asked or question(), **(FACTS | facts))


def test_the_key_names_what_the_outcome_depends_on() -> None:
    assert key() == key()
    assert key(sizes=[4, 3]) == key(), "the order of the clients does not matter"
    assert key(memory=(1 << 30) + 1) == key(), "nor a few bytes"
    same = {"execution": "folded", "chunk_size": 3}
    assert key(training=same) == key(), "the question says what is asked"
    others = [
        key(lambda: nn.Sequential(nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, CLASSES))),
        key(lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))),
        key(lambda: dense().double()),
        key(asked=question("folded")),
        key(asked=question("folded", 3)),
        key(asked=question(cohort=9)),
        key(sizes=[3, 5]),
        key(memory=1 << 31),
        key(input_shape=(2, FEATURES)),
        key(training={"batch_size": 5}),
        key(training={"optimizer": "adam"}),
        key(training={"momentum": 0.5}),
    ]
    assert len({key(), *others}) == 1 + len(others)


def test_code_beside_a_models_class_and_in_its_base_is_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that comes to mix its samples by a helper must not keep what an old trial found."""
    monkeypatch.syspath_prepend(str(tmp_path))
    base = tmp_path / "base_for_trial_keys.py"
    model = tmp_path / "model_for_trial_keys.py"
    model.write_text(
        "from base_for_trial_keys import Base\n"
        "def helper(x):\n    return x\n"
        "class Model(Base):\n    pass\n"
    )
    base.write_text("from torch import nn\nclass Base(nn.Linear):\n    pass\n")
    keys = []
    for path, text in ((None, ""), (model, "# changed\n"), (base, "# changed\n")):
        if path is not None:
            path.write_text(path.read_text() + text)
        for name in ("model_for_trial_keys", "base_for_trial_keys"):
            monkeypatch.delitem(importlib.sys.modules, name, raising=False)
        importlib.invalidate_caches()
        import linecache

        linecache.clearcache()
        made = importlib.import_module("model_for_trial_keys").Model
        keys.append(key(lambda made=made: made(FEATURES, CLASSES)))
    assert len(set(keys)) == 3


def test_the_files_can_be_read_by_people(cache: Path) -> None:
    trial_cache.remember("a", CHOICE)
    found = json.loads((cache / "a.json").read_text())
    assert found == {"kind": "folded", "chunk_size": 64, "reason": "because"}


def test_numbers_of_a_real_trial_are_of_this_world() -> None:
    """No stopwatch of the test's: it ends, and soon."""
    many = Clients(x=numbers(64 * 20), sizes=(20,) * 64)
    found = try_out(many, question(cohort=64))
    assert found.execution.kind in (Kind.COMPILED, Kind.FOLDED, Kind.SEQUENTIAL)
    assert "as fast" in found.reason
