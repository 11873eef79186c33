"""An upload goes on where its stream broke, and pushes nothing that is there already."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broken_transfers import DATA, World, blob_of, in_a_world, put
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.wire.blobs.errors import BadBlob
from fedpilot.mediator.wire.transfer import TransferFailed, TransferSettings


@pytest.mark.parametrize("seed", range(5))
def test_an_upload_goes_on_where_it_was_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fine = TransferSettings(piece_bytes=2_000, first_pause_s=0.001)

    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        # So far apart that some pieces are on the disk by then, and not only on their way there.
        there.breaks.cuts = [rng.randrange(9, 16) for _ in range(3)]
        await there.client.upload(blob, run="r", key="1")
        assert there.mediator.path(blob.digest).read_bytes() == DATA
        offsets = there.service.offsets
        assert len(offsets) == 4
        assert offsets == sorted(set(offsets))
        assert there.gate.booked[Direction.FROM_SITE] >= len(DATA)
        assert there.booked[Direction.FROM_SITE] >= len(DATA)

    in_a_world(tmp_path, act, settings=fine)


def test_what_is_there_already_is_not_pushed(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        put(there.mediator, DATA)
        await there.client.upload(blob, run="r", key="1")
        assert there.service.streams == 0

    in_a_world(tmp_path, act)


def test_an_upload_that_arrives_spoiled_is_pushed_anew_but_not_for_ever(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        there.breaks.spoiled = [3]
        await there.client.upload(blob, run="r", key="1")
        assert there.mediator.path(blob.digest).read_bytes() == DATA
        there.mediator.path(blob.digest).unlink()
        there.breaks.spoiled = [1] * 10
        with pytest.raises(TransferFailed, match="DATA_LOSS"):
            await there.client.upload(blob, run="r", key="1")
        assert there.service.streams == 5

    in_a_world(tmp_path, act)


def test_uploads_of_one_digest_for_two_orders_push_it_once(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        orders = (there.client.upload(blob, run="r", key=str(key)) for key in range(4))
        await asyncio.gather(*orders)
        assert there.service.streams == 1

    in_a_world(tmp_path, act)


def test_uploads_of_one_digest_do_not_end_each_other_while_its_blob_comes_and_goes(
    tmp_path: Path,
) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)

        async def orders(*keys: str) -> None:
            for key in keys:
                await there.client.upload(blob, run="r", key=key)
                there.mediator.path(blob.digest).unlink()  # its answer has been taken

        await asyncio.gather(orders("1", "3", "5"), orders("2", "4", "6"))
        assert there.service.streams == 6

    in_a_world(tmp_path, act)


def test_a_site_cannot_upload_what_it_has_not(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        with pytest.raises(BadBlob, match="there is no blob"):
            await there.client.upload(blob_of(DATA), run="r", key="1")

    in_a_world(tmp_path, act)
