"""What the guide says is enough to bring a mediator, or a site, back elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from fedpilot.mediator.agent.home import SiteHome
from fedpilot.mediator.identity import Authority, Credentials, Role
from fedpilot.mediator.wire.messages import SiteName
from mediators import mediating

NOW = 1_800_000_000.0


def backed_up(folder: Path, to: Path) -> None:
    """As the guide says, while the mediator works."""
    to.mkdir()
    for name in ("certs", "runs"):
        shutil.copytree(folder / name, to / name)
    with (
        closing(sqlite3.connect(folder / "mediator.sqlite")) as there,
        closing(sqlite3.connect(to / "mediator.sqlite")) as here,
    ):
        there.backup(here)


def test_a_mediator_is_brought_back_from_its_backup_in_another_folder(tmp_path: Path) -> None:
    async def test() -> None:
        order = {"site": "paris", "key": "a", "numbers": 10}
        async with mediating(tmp_path / "m") as here:
            credentials = here.keys("paris")
            async with here.agent("paris", credentials=credentials):
                await here.state("paris", "ready")
                await here.submit("run", [order], wait_for=1)
                before = await here.ended("run")
                assert before["status"] == "finished"
                await asyncio.to_thread(backed_up, tmp_path / "m", tmp_path / "restored")
        async with mediating(tmp_path / "restored") as here:
            await here.state("paris", "suspect")
            async with here.agent("paris", credentials=credentials):
                await here.state("paris", "ready")
            after = await here.run("run")
            assert after["folder"] == str(tmp_path / "restored" / "runs" / "run")
            assert {**after, "folder": ""} == {**before, "folder": ""}
            assert len(await here.events("run")) == 2

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_site_is_brought_back_from_three_things(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs", now=NOW)
    old, new = SiteHome(tmp_path / "old"), SiteHome(tmp_path / "new")
    with old.locked():
        made = authority.issue("paris", Role.SITE, now=NOW)
        made.write(old.credentials_folder)
        old.write_mediator(SiteName("paris"), "fl.example.org:7461")
        secret = old.secret()
    new.folder.mkdir()
    shutil.copytree(old.credentials_folder, new.credentials_folder)
    for name in ("site.json", "secret"):
        shutil.copy(old.folder / name, new.folder / name)
    with new.locked():
        assert new.joined() == ("paris", "fl.example.org:7461")
        assert Credentials.read(new.credentials_folder) == made
        assert new.secret() == secret
