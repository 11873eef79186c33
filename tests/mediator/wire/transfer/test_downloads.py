"""A download goes on where its stream broke, and ends with its attempts or its deadline."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import given, strategies as st

from broken_transfers import DATA, QUICK, Code, World, blob_of, in_a_world, put
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.wire.blobs.errors import NoRoom
from fedpilot.mediator.wire.blobs.part import PartialBlob
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.rpc import TOO_MANY_CALLS
from fedpilot.mediator.wire.transfer import (
    BlobClient,
    TransferFailed,
    TransferRefused,
    TransferSettings,
)


@pytest.mark.parametrize("seed", range(5))
def test_a_download_goes_on_where_it_was_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [rng.randrange(4) for _ in range(6)]
        path = await there.client.download(blob)
        assert path.read_bytes() == DATA
        # Pieces that had come before a cut are not sent again.
        assert there.booked == {Direction.TO_SITE: len(DATA)}
        assert there.gate.booked[Direction.TO_SITE] >= len(DATA)
        assert there.service.streams == 7

    in_a_world(tmp_path, act)


def test_a_download_goes_on_with_what_an_earlier_process_left(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        part = there.site.open_part(blob)
        part.write(DATA[:60_000])
        part.close()
        await there.client.download(blob)
        assert there.site.has(blob)
        assert there.booked == {Direction.TO_SITE: 40_000}

    in_a_world(tmp_path, act)


def test_a_blob_that_came_spoiled_is_fetched_anew_but_not_for_ever(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.spoiled = [3, 0]
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.booked == {Direction.TO_SITE: 3 * len(DATA)}
        there.site.path(blob.digest).unlink()
        there.breaks.spoiled = [1] * 10
        with pytest.raises(TransferFailed, match="with the digest"):
            await there.client.download(blob)
        assert there.service.streams == 6
        assert not list(there.site.folder.iterdir())

    in_a_world(tmp_path, act)


def test_a_stream_that_stalls_is_broken_and_tried_again(tmp_path: Path) -> None:
    impatient = TransferSettings(piece_bytes=7_000, stall_s=0.1, first_pause_s=0.001)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [2, 0]
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.booked == {Direction.TO_SITE: len(DATA)}

    in_a_world(tmp_path, act, settings=impatient)


def test_a_download_ends_with_its_budget_of_attempts(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [1] + [0] * 20
        with pytest.raises(TransferFailed, match=r"came to 7000 of 100000 bytes: .*link is cut"):
            await there.client.download(blob)
        assert there.service.streams == 1 + QUICK.attempts - 1

    in_a_world(tmp_path, act)


def test_each_byte_further_renews_the_budget_of_attempts(tmp_path: Path) -> None:
    few = TransferSettings(piece_bytes=7_000, first_pause_s=0.001, longest_pause_s=0.01, attempts=2)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [1] * 10
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.service.streams == 11

    in_a_world(tmp_path, act, settings=few)


def test_a_blob_that_has_just_come_does_not_make_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = PartialBlob.finish

    def finishing(part: PartialBlob) -> Path:
        path = finish(part)
        # Another process of the site needs the whole folder now.
        with pytest.raises(NoRoom):
            BlobStore(path.parent, len(DATA)).make_room_for(len(DATA))
        return path

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        monkeypatch.setattr(PartialBlob, "finish", finishing)
        assert (await there.client.download(blob)).read_bytes() == DATA

    in_a_world(tmp_path, act)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((Code.UNAVAILABLE, f"{TOO_MANY_CALLS}: site paris has 64 open"), id="of ours"),
        pytest.param((Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"), id="of anybody"),
    ],
)
def test_who_finds_too_many_calls_tries_again_whatever_its_budget(
    tmp_path: Path, said: tuple[grpc.StatusCode, str]
) -> None:
    async def act(w: World) -> None:
        w.breaks.refusals = [said] * 20
        blob = put(w.mediator, DATA)
        assert (await w.client.download(blob)).read_bytes() == DATA
        w.breaks.refusals = [said] * 20
        await w.client.upload(put(w.site, DATA[1:]), run="r", key="k")
        assert w.mediator.has(blob_of(DATA[1:]))

    in_a_world(tmp_path, act)


def test_a_site_has_few_streams_at_once(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        blobs = [put(w.mediator, DATA[at:]) for at in range(8)]
        await asyncio.gather(*map(w.client.download, blobs))
        assert all(map(w.site.has, blobs))
        assert w.service.most_open == 3

    in_a_world(tmp_path, act, settings=replace(QUICK, at_once=3))


def test_a_download_ends_with_its_deadline(tmp_path: Path) -> None:
    brief = TransferSettings(piece_bytes=7_000, floor_s=0.1, slowest_bytes_per_s=10**9)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [1]
        with pytest.raises(TransferFailed, match="0 s are over"):
            await there.client.download(blob)
        # The part is free again for whoever tries next, and has more time.
        there.breaks.stalls = []
        patient = BlobClient(there.stub, there.site, lambda *_: None, QUICK)
        assert (await patient.download(blob)).read_bytes() == DATA

    in_a_world(tmp_path, act, settings=brief)


def test_a_download_may_take_as_long_as_it_goes_on(tmp_path: Path) -> None:
    patient = TransferSettings(piece_bytes=7_000, floor_s=4.0, slowest_bytes_per_s=10**9)

    async def act(there: World) -> None:
        there.breaks.pace_s = 0.4  # of 15 pieces
        blob = put(there.mediator, DATA)
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.service.streams == 1

    in_a_world(tmp_path, act, settings=patient)


def test_downloads_of_one_digest_at_once_fetch_it_once(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        paths = await asyncio.gather(*(there.client.download(blob) for _ in range(5)))
        assert set(paths) == {there.site.path(blob.digest)}
        assert there.booked == {Direction.TO_SITE: len(DATA)}
        assert there.service.streams == 1

    in_a_world(tmp_path, act)


def test_who_gives_up_a_shared_download_does_not_end_it_unless_alone(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [1]
        lone = asyncio.create_task(there.client.download(blob))
        while not there.booked:
            await asyncio.sleep(0)
        lone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lone
        one, other = (asyncio.create_task(there.client.download(blob)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert (await other).read_bytes() == DATA
        assert one.cancelled()

    in_a_world(tmp_path, act)


def test_a_site_without_room_says_so_before_it_fetches(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        with pytest.raises(NoRoom, match="raise its limit"):
            await there.client.download(blob)
        assert there.service.streams == 0

    in_a_world(tmp_path, act, site_limit=10)


@pytest.mark.parametrize(
    ("refusal", "there_too", "says"),
    [
        pytest.param("no order of yours names it", True, "PERMISSION_DENIED: no order", id="gate"),
        pytest.param("", False, "NOT_FOUND: blob .* is not here", id="unknown"),
    ],
)
def test_a_refused_download_is_not_tried_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    refusal: str,
    there_too: bool,
    says: str,
) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA) if there_too else blob_of(DATA)
        there.gate.refusal = refusal
        with pytest.raises(TransferRefused, match=says):
            await there.client.download(blob)
        assert there.service.streams == 1

    with caplog.at_level(logging.WARNING):
        in_a_world(tmp_path, act)
    assert "site paris: " in caplog.text


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_double_and_are_spread(failures: int, chance: float) -> None:
    settings = TransferSettings(first_pause_s=0.5, longest_pause_s=3.0)
    whole = {1: 0.5, 2: 1.0, 3: 2.0}.get(failures, 3.0)
    assert whole / 2 <= settings.pause_s(failures, chance) <= whole
    assert settings.pause_s(failures, 0.0) < settings.pause_s(failures, 0.5)
