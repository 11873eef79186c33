"""A site's certificate is renewed in time, without a transfer that is lost by it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import site_agents
from fake_mediator import FakeMediator, fake_mediator
from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.agent.membership import renewal
from fedpilot.mediator.agent.membership.channel import MediatorChannels
from fedpilot.mediator.agent.membership.renewal import DUE, SPREAD, due_at, pause_s
from fedpilot.mediator.core.rules.roles import Role
from fedpilot.mediator.identity import CertificateExpired, Credentials, IdentityError
from fedpilot.mediator.identity.certificates import SKEW_S
from fedpilot.mediator.identity.tls import peer_of
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.payloads import write
from fedpilot.mediator.wire.transfer import BlobClient, TransferSettings
from fedpilot.mediator.workload import Payload
from mediators import eventually
from site_agents import PARIS, running

YEAR_S = 365 * 86_400.0


def credentials(mediator: FakeMediator, *, age_s: float, valid_s: float) -> Credentials:
    return mediator.authority.issue(PARIS, Role.SITE, now=time.time() - age_s, valid_s=valid_s)


def due(mediator: FakeMediator) -> Credentials:
    """Those whose time is nearly over: due whatever `chance` adds."""
    return credentials(mediator, age_s=(DUE + SPREAD) * 1_000.0, valid_s=1_000.0)


class Said(list[tuple[str, dict[str, Any]]]):
    """What an agent has told."""

    def __call__(self, event: str, /, **fields: Any) -> None:
        self.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self if name == event]


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_and_not_by_all_at_once(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path) as mediator:
            identity = credentials(mediator, age_s=0.0, valid_s=YEAR_S).identity
            issued_at = identity.begins_at + SKEW_S
            life_s = identity.expires_at - issued_at
            assert due_at(identity, 0.0) == issued_at + DUE * life_s
            assert due_at(identity, 1.0) == issued_at + (DUE + SPREAD) * life_s
            assert pause_s(identity) == 3_600.0
            short = credentials(mediator, age_s=0.0, valid_s=360.0).identity
            assert pause_s(short) == 1.8

    asyncio.run(test())


@pytest.mark.parametrize("valid_s", [60.0, 86.4, 600.0, YEAR_S])
def test_however_short_it_is_good_for_it_is_not_renewed_before_half_of_that_is_over(
    valid_s: float, tmp_path: Path
) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path) as mediator:
            before = time.time()
            identity = credentials(mediator, age_s=0.0, valid_s=valid_s).identity
            assert due_at(identity, 0.0) >= before + valid_s / 2
            assert due_at(identity, 1.0) < identity.expires_at

    asyncio.run(test())


def test_it_is_renewed_for_the_same_key_and_used_in_a_session_that_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(60):
            home, said, old = SiteHome(tmp_path / "paris"), Said(), due(mediator)
            with home.locked():
                agent = site_agents.agent(home, mediator.address, old, say=said)
                async with running(agent):
                    first = await mediator.next_session()
                    second = await mediator.next_session()
                    new = Credentials.read(home.credentials_folder)
                    assert new.key == old.key
                    assert new.identity.expires_at > old.identity.expires_at
                    assert peer_of(second.context).serial == new.identity.serial
                    assert second.hello.agent == first.hello.agent
                    (renewed,) = said.of("certificate_renewed")
                    assert renewed["expires_at"] == new.identity.expires_at
                    assert said.of("disconnected") == []
            states = {each.serial: each.state(time.time()) for each in mediator.authority.issued()}
            assert states[old.identity.serial] == "valid"

    asyncio.run(test())


def test_a_mediator_that_does_not_renew_is_told_of_and_worked_with(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(60):
            mediator.renews_not = "its authority ends"
            home, said = SiteHome(tmp_path / "paris"), Said()
            with home.locked():
                agent = site_agents.agent(home, mediator.address, due(mediator), say=said)
                async with running(agent):
                    await mediator.next_session()
                    await eventually(lambda: said.of("certificate_not_renewed"))
                    (told,) = said.of("certificate_not_renewed")
                    assert told["days"] == 0.0
                    assert "its authority ends" in told["reason"]
                    assert said.of("disconnected") == []

    asyncio.run(test())


def test_a_certificate_that_cannot_be_kept_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "LONGEST_PAUSE_S", 0.05)

    async def test() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(60):
            home, said, old = SiteHome(tmp_path / "paris"), Said(), due(mediator)
            with home.locked():
                home.credentials_folder.touch()  # in the place of the folder
                agent = site_agents.agent(home, mediator.address, old, say=said)
                async with running(agent):
                    await eventually(lambda: said.of("certificate_not_renewed"))
                    home.credentials_folder.unlink()
                    await eventually(lambda: said.of("certificate_renewed"))
            assert len(mediator.authority.issued()) == 3  # the mediator's, the old, the new one
            assert Credentials.read(home.credentials_folder).identity != old.identity

    asyncio.run(test())


def test_a_site_that_was_away_for_too_long_is_told_what_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(60):
            home = SiteHome(tmp_path / "paris")
            old = credentials(mediator, age_s=100.0, valid_s=50.0)
            with home.locked():
                agent = site_agents.agent(home, mediator.address, old)
                with pytest.raises(CertificateExpired, match="fedpilot site token paris"):
                    await agent.run()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("name", "valid_s", "said"),
    [
        pytest.param("rome", 3_000.0, "one of rome", id="of another name"),
        pytest.param("paris", 100.0, "until .* only", id="that ends sooner"),
    ],
)
def test_a_certificate_that_cannot_take_its_place_is_refused(
    tmp_path: Path, name: str, valid_s: float, said: str
) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path) as mediator:
            old = due(mediator)
            made = mediator.authority.sign(
                old.request(), name, Role.SITE, now=time.time(), valid_s=valid_s
            )
            with pytest.raises(IdentityError, match=said):
                old.renewed(made)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("old_line_s", "fetches"),
    [
        pytest.param(60.0, 1, id="goes on over the old line"),
        pytest.param(0.05, 2, id="is taken up on the new one where the old one is closed"),
    ],
)
def test_a_transfer_outlives_the_line_that_it_began_on(
    tmp_path: Path, old_line_s: float, fetches: int
) -> None:
    async def test() -> None:
        async with fake_mediator(tmp_path / "mediator") as mediator, asyncio.timeout(60):
            model = Payload(kind="model", tensors={"w": np.arange(300_000)})
            _, blob = write(model, mediator.store)
            assert blob is not None
            hold = asyncio.Event()
            mediator.held.append(hold)
            old = due(mediator)
            line = MediatorChannels(mediator.address, old, old_line_s=old_line_s)
            store = BlobStore(tmp_path / "site", 1 << 30)
            settings = TransferSettings(first_pause_s=0.05)
            blobs = BlobClient(line.blobs, store, lambda *_: None, settings)
            fetching = asyncio.create_task(blobs.download(blob))
            await eventually(lambda: len(mediator.offsets) == 1)
            certificate = mediator.authority.renew(
                old.identity.serial, old.request(), now=time.time()
            )
            line.replace(old.renewed(certificate))
            blobs.use(line.blobs)
            await eventually(lambda: len(mediator.offsets) == fetches)
            hold.set()
            await fetching
            assert store.has(blob)
            assert len(mediator.offsets) == fetches
            await line.close()
            await line.close()

    asyncio.run(test())
