"""What a new head of a Ray cluster knows of the one before it, and what it can make again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.core.cluster_state import Entry, JobId
from fedpilot.fabric.core.places.groups import GroupId
from fedpilot.fabric.core.ray_clusters.heads import (
    TOLD_S,
    HeadRecord,
    Remembered,
    gone_of,
    remembered,
    restorable,
    succeed,
    update,
)
from fedpilot.fabric.core.records import ROOT, ClusterId
from fedpilot.fabric.errors import NoSuchCluster
from fedpilot.fabric.manager.files.head_file import HeadFile, began, file_of, read, write
from reconciler_world import World, story, two

NOW = 1_700_000_000.0


def lost(name: str, inside: str = ROOT, **more: object) -> Remembered:
    spec = {"flex_resource_min": {"CPU": 1.0}}
    return replace(Remembered(id=ClusterId(name), parent=ClusterId(inside), spec=spec), **more)  # type: ignore[arg-type]


def entry(name: str, cpus: float = 1, inside: str = ROOT, **more: object) -> Entry:
    spec = VirtualCluster(flex_resource_min={"CPU": cpus})
    request = spec.request(name, parent=ClusterId(inside), deadline=NOW + 60)
    return replace(Entry(request=request, spec=spec.to_dict(), user="alice"), **more)  # type: ignore[arg-type]


class TestRecord:
    def test_it_holds_what_is_needed_to_ask_again(self) -> None:
        job, group = JobId("01000000"), GroupId("g")
        notebook = VirtualCluster().request(
            "notebook", project="vision", pool="gpus", priority_class="build", preemptible=False
        )
        entries = [
            Entry(request=notebook),
            entry("waits"),
            entry("active", waiting=False),
            entry("of-a-job", owner=job, waiting=False),
            entry("group", owner=job, group=group),
        ]
        found = {each.id: each for each in remembered(entries)}
        assert list(found) == ["notebook", "waits", "active", "of-a-job"]
        asked = found[notebook.id]
        assert (asked.project, asked.pool) == ("vision", "gpus")
        assert (asked.priority_class, asked.preemptible) == ("build", False)
        assert found[ClusterId("waits")].deadline == NOW + 60
        assert found[ClusterId("active")].deadline is None, "it has its places: none to give up"
        assert found[ClusterId("of-a-job")].owner == job
        assert found[ClusterId("waits")].user == "alice"

    def test_a_manager_that_begins_again_on_the_same_head_has_lost_nothing(self) -> None:
        there = HeadRecord(session="one", began=NOW, clusters=(lost("a"),))
        assert succeed(there, "one", NOW + 9) == there

    def test_a_new_head_has_lost_what_the_one_before_it_had(self) -> None:
        first = HeadRecord(session="one", began=NOW, clusters=(lost("a"), lost("b", owner="01")))
        second = succeed(first, "two", NOW + 9)
        assert (second.began, second.clusters) == (NOW + 9, ())
        assert [each.id for each in second.gone] == ["a", "b"]

    def test_what_was_not_restored_outlives_further_heads_but_not_what_was_of_jobs(self) -> None:
        first = HeadRecord(session="one", began=NOW, clusters=(lost("a"), lost("b", owner="01")))
        second = update(succeed(first, "two", NOW + 9), (lost("c"),), NOW + 9)
        third = succeed(second, "three", NOW + 19)
        assert [each.id for each in third.gone] == ["a", "c"]

    def test_what_is_there_again_or_dropped_is_not_gone(self) -> None:
        head = HeadRecord(session="two", began=NOW, gone=(lost("a"), lost("b"), lost("c")))
        now = update(head, (lost("a"),), NOW, drop=["b"])
        assert [each.id for each in now.gone] == ["c"]
        assert [each.id for each in gone_of(head, ["c"], NOW)] == ["a", "b"]

    def test_what_was_of_jobs_is_told_for_a_day(self) -> None:
        head = HeadRecord(session="two", began=NOW, gone=(lost("a"), lost("b", owner="01")))
        assert [each.id for each in gone_of(head, [], NOW + TOLD_S - 1)] == ["a", "b"]
        assert [each.id for each in gone_of(head, [], NOW + TOLD_S + 1)] == ["a"]

    @pytest.mark.parametrize(
        ("one", "why"),
        [
            pytest.param(lost("x", owner="0100"), "it belonged to job 0100", id="of a job"),
            pytest.param(lost("x", deadline=NOW - 1), "its deadline is over", id="too late"),
            pytest.param(lost("x", inside="up"), "up, which it was inside of", id="no parent"),
        ],
    )
    def test_some_cannot_be_restored_and_it_is_said_why(self, one: Remembered, why: str) -> None:
        found = restorable([one], [], ["x"], NOW)
        assert found.again == ()
        assert found.refused["x"].startswith(why) or why in found.refused["x"]

    def test_without_names_all_detached_ones_are_restored_with_their_parents(self) -> None:
        gone = [lost("up"), lost("in", inside="up"), lost("job", owner="01")]
        found = restorable(gone, [], [], NOW)
        assert [each.id for each in found.again] == ["up", "in"]
        assert found.refused == {}


class TestFile:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        path = file_of(tmp_path / "deep", "host", "10.0.0.1:6379")
        assert path.name == "host-10.0.0.1-6379.json"
        assert read(path) is None
        record = HeadRecord(session="s", began=NOW, clusters=(lost("a"),), gone=(lost("b"),))
        write(path, record)
        assert read(path) == record
        assert path.stat().st_mode & 0o777 == 0o600
        write(path, HeadRecord(session="s", began=NOW))
        assert not path.exists(), "there is nothing that a new head would have to know"

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 9}', '{"format": 1}'])
    def test_what_is_no_record_stays_and_is_told(
        self, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "head.json"
        path.write_text(text)
        assert asyncio.run(HeadFile.open(path, "s", NOW)) is None
        assert path.read_text() == text
        assert "is not known" in caplog.text

    def test_a_session_says_when_it_began(self) -> None:
        later = began("session_2026-11-23_07-00-01_123456_42", 0.0)
        assert later - began("session_2026-11-23_06-59-00_123456_42", 0.0) == 61
        assert began("session_of_another_kind", NOW) == NOW

    @story
    async def test_changes_are_on_disk_before_the_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "head.json"
        head = await HeadFile.open(path, "one", NOW)
        assert head is not None
        entries = {each.request.id: each for each in (entry("a"), entry("b"))}
        await head.keep(entries, NOW, wait_s=60)
        assert [each["id"] for each in json.loads(path.read_text())["clusters"]] == ["a", "b"]
        del entries[ClusterId("a")]
        await head.keep(entries, NOW, wait_s=60)
        found = read(path)
        assert found is not None
        assert [each.id for each in found.clusters] == ["b"]

        anew = await HeadFile.open(path, "two", NOW + 9)
        assert anew is not None
        assert [each["id"] for each in anew.document([], NOW + 9)["gone"]] == ["b"]
        await anew.keep({}, NOW + 9, drop=["b"], wait_s=60)
        assert not path.exists()

    @story
    async def test_a_folder_that_cannot_be_written_stops_nobody(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        assert await HeadFile.open(tmp_path / "file" / "head.json", "one", NOW) is None
        blocked = await HeadFile.open(tmp_path / "gone" / "head.json", "one", NOW)
        assert blocked is not None
        (tmp_path / "gone").write_text("")
        for count in (1, 2):
            names = [f"c{n}" for n in range(count)]
            await blocked.keep({ClusterId(n): entry(n) for n in names}, NOW, wait_s=60)
        assert caplog.text.count("a new head will not know") == 1


class TestRestore:
    @story
    async def test_it_is_asked_for_again_for_whoever_it_belonged_to(self, world: World) -> None:
        await world.begins(*two())
        teams = {"projects": [{"name": "vision", "quota": {"default": {"CPU": 8}}}]}
        world.reconciler.admission.apply_queues(teams, None, "ann", dry_run=False)
        gone = (
            lost("up", user="alice", project="vision", preemptible=False),
            lost("in", inside="up"),
            lost("big"),
        )
        big = replace(gone[2], spec={"flex_resource_min": {"CPU": 99.0}})
        record = HeadRecord(session="two", began=NOW, gone=(*gone[:2], big))
        restored, refused = world.reconciler.restore(record, [], "bob")
        assert restored == ["up", "in"]
        assert "can never get its places" in refused["big"]
        again = world.cluster_state.entries[ClusterId("up")]
        found = again.user, again.request.project, again.request.preemptible
        assert found == ("alice", "vision", False)
        assert ("up", "restored", "by bob") in world.events()
        await world.passes(1)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

        twice, _ = world.reconciler.restore(record, ["up"], "bob")
        assert twice == ["up"], "asked twice, answered alike"

    @story
    async def test_what_is_inside_one_that_waits_is_restored_later(self, world: World) -> None:
        await world.begins(*two())
        await world.create(entry("other", 8))
        record = HeadRecord(session="two", began=NOW, gone=(lost("up"), lost("in", inside="up")))
        restored, refused = world.reconciler.restore(record, [], "")
        assert [(each, world.state(each)) for each in restored] == [("up", "waiting")]
        assert refused == {"in": "up, which it was inside of, has no places yet"}

    @story
    async def test_a_name_that_nobody_has_lost_is_refused(self, world: World) -> None:
        await world.begins(*two())
        record = HeadRecord(session="two", began=NOW, gone=(lost("a"),))
        with pytest.raises(NoSuchCluster, match="there are: a"):
            world.reconciler.restore(record, ["a", "b"], "")
        assert world.cluster_state.entries == {}
