"""Equal files make equal bytes, which any tool reads; nothing else is taken for an archive."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.user_code import code_archive
from fedpilot.federated.core.user_code.code_archive import (
    LARGEST_ARCHIVE,
    MOST_FILES,
    check,
    packed,
    unpacked,
)
from fedpilot.federated.errors import CodeRefused
from fedpilot.mediator.server.runs.runs import LARGEST_CODE

FILES = {"nets.py": b"Net = 1\n", "my/__init__.py": b"", "my/parts/wards.py": "é = 2\n".encode()}
SHA_256 = "3041ff60554ae616e944c1bbe9f3380d056e4e108f3b14912357660fef761355"

names = st.sampled_from(["m.py", "m/__init__.py", "m/n.py", "m/n/o.py", "é.py", "n_1.py"])
some_files = st.dictionaries(names, st.binary(max_size=100), min_size=1)


@given(some_files)
def test_what_was_packed_is_unpacked(files: dict[str, bytes]) -> None:
    check(files)
    assert unpacked(packed(files)) == files


@given(some_files)
def test_the_order_of_files_does_not_matter(files: dict[str, bytes]) -> None:
    backwards = dict(reversed(files.items()))
    assert packed(backwards) == packed(files)


def test_the_bytes_are_the_same_for_ever() -> None:
    """Policies of sites list this digest; another way of writing would refuse all known code."""
    assert hashlib.sha256(packed(FILES)).hexdigest() == SHA_256


def test_other_tools_read_it() -> None:
    with zipfile.ZipFile(io.BytesIO(packed(FILES))) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == FILES
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return written.getvalue()


def linked() -> bytes:
    """A zip file with a link in it."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        link = zipfile.ZipInfo("nets.py")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    return written.getvalue()


def renamed(name: str) -> bytes:
    """An archive whose one file has a name of our choice."""
    return packed({name: b"x = 1\n"})


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        pytest.param(b"", "0 bytes that are no archive", id="nothing"),
        pytest.param(b"PK\x03\x04", "4 bytes that are no archive", id="a beginning"),
        pytest.param(b"import os\n", "no archive", id="no zip file"),
        pytest.param(packed({}), "no archive", id="no files"),
        pytest.param(renamed("../nets.py"), "'../nets.py'", id="a way out"),
        pytest.param(renamed("my/../../nets.py"), "only modules", id="a way out, later"),
        pytest.param(renamed("/etc/nets.py"), "'/etc/nets.py'", id="an absolute path"),
        pytest.param(renamed("C:\\nets.py"), "only modules", id="a path of Windows"),
        pytest.param(renamed("my\\nets.py"), "only modules", id="a backslash"),
        pytest.param(renamed("my//nets.py"), "only modules", id="an empty folder"),
        pytest.param(renamed("my/.hidden/nets.py"), "only modules", id="a hidden folder"),
        pytest.param(renamed("nets.py\0.txt"), "only modules", id="a NUL"),
        pytest.param(renamed("ne\nts.py"), r"'ne\nts.py'", id="a new line"),
        pytest.param(renamed(".py"), "only modules", id="no name"),
        pytest.param(renamed("nets.so"), "only modules", id="a library"),
        pytest.param(renamed("nets.pth"), "only modules", id="a path file"),
        pytest.param(renamed("my/"), "only modules", id="a folder"),
        pytest.param(renamed("n" * 300 + ".py"), "only modules", id="a long name"),
        pytest.param(renamed("json.py"), "Python or of fedpilot", id="a name of Python's"),
        pytest.param(renamed("fedpilot/cli.py"), "Python or of fedpilot", id="a name of ours"),
        pytest.param(linked(), "no archive of fedpilot", id="a link"),
        pytest.param(zipped(FILES), "no archive of fedpilot", id="of another tool"),
        pytest.param(zipped({"a.py": bytes(1 << 20)}, zipfile.ZIP_DEFLATED), "no archive of",
                     id="a bomb"),
        pytest.param(packed(FILES) + b"\0", "no archive of", id="bytes behind it"),
        pytest.param(packed(FILES)[:-1], "no archive of", id="cut short"),
        pytest.param(packed(FILES).replace(b"Net = 1", b"Net = 2"), "no archive of", id="changed"),
        pytest.param(packed({"a.py": b"", "b.py": b""}).replace(b"b.py", b"a.py"), "no archive of",
                     id="a name twice"),
        pytest.param(bytes(LARGEST_ARCHIVE + 1), f"at most {LARGEST_ARCHIVE}", id="too large"),
        pytest.param(packed({f"m{i}.py": b"" for i in range(MOST_FILES + 1)}), "more than 2000",
                     id="too many files"),
    ],
)  # fmt: skip
def test_hostile_archives_are_refused(archive: bytes, words: str) -> None:
    with pytest.raises(CodeRefused) as refused:
        unpacked(archive)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 400


@given(st.binary(max_size=300).map(lambda noise: b"PK\x03\x04" + noise))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    with pytest.raises(CodeRefused):
        unpacked(noise)


@given(st.data())
def test_one_changed_byte_is_no_archive(data: st.DataObject) -> None:
    archive = bytearray(packed(FILES))
    at = data.draw(st.integers(0, len(archive) - 1))
    archive[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CodeRefused):
        unpacked(bytes(archive))


def test_a_mediator_takes_what_travels() -> None:
    assert LARGEST_CODE == LARGEST_ARCHIVE


def test_too_much_is_refused_before_it_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "LARGEST_ARCHIVE", 1_000)
    check({"a.py": bytes(800)})
    with pytest.raises(CodeRefused, match=r"an archive of \d+ bytes in 1 files; at most 1000"):
        check({"a.py": bytes(1_000)})


def test_a_refusal_travels_as_it_is() -> None:
    with pytest.raises(CodeRefused) as refused:
        unpacked(b"x")
    assert str(CodeRefused(*refused.value.args)) == str(refused.value)
