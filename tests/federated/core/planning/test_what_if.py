"""Sites that are added to a plan, or removed from it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.planning.sites import PlannedSite
from fedpilot.federated.core.planning.what_if import BadWhatIf, added, with_changes
from fedpilot.mediator.core.links import LinkSpeed

HERE = [PlannedSite(name="b", workers=1), PlannedSite(name="a", workers=2)]


def test_a_specification_says_what_is_known_of_a_site() -> None:
    site = added("lyon:workers=4,up=100Mbit/s, down = 1Gbit/s,round_trip=30ms,pace=2ms")
    assert (site.name, site.workers, site.seconds_per_sample) == ("lyon", 4, 0.002)
    assert site.link == LinkSpeed(up=12.5e6, down=125e6, round_trip_s=0.03)
    assert added("x:workers=1").link == LinkSpeed()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("lyon", "such as lyon:workers=4", id="no specification"),
        pytest.param(":workers=1", "allowed: NAME:", id="no name"),
        pytest.param("a/b:workers=1", "allowed: NAME:", id="no name for a site"),
        pytest.param("lyon:up=1MB/s", "`workers` is missing", id="no workers"),
        pytest.param("lyon:workers=0", "at least 1", id="no worker"),
        pytest.param("lyon:worker=1", "did you mean `workers`?", id="a misspelt key"),
        pytest.param("lyon:workers=1,ping=3", "allowed: workers, up, down", id="an unknown key"),
        pytest.param("lyon:workers=1,up", "unknown `up`", id="a key without a value"),
        pytest.param("lyon:workers=1,up=100", "such as 100Mbit/s", id="a speed without its unit"),
        pytest.param("lyon:workers=1,up=0Mbit/s", "above 0", id="no speed"),
        pytest.param("lyon:workers=1,pace=fast", "such as 2ms", id="no time"),
        pytest.param("lyon:workers=1,workers=2", "given twice", id="a key given twice"),
    ],
)
def test_a_bad_specification_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(BadWhatIf) as refused:
        added(text)
    assert said in str(refused.value)


@given(st.text())
def test_any_text_is_a_site_or_refused(text: str) -> None:
    with suppress(BadWhatIf):
        assert added(text).workers


def test_sites_are_added_and_removed_and_in_order() -> None:
    found = with_changes(HERE, ["0:workers=3"], ["b"])
    assert [site.name for site in found] == ["0", "a"]
    assert [s.workers for s in with_changes(HERE, ["a:workers=9"], ["a"])] == [9, 1]


@pytest.mark.parametrize(
    ("add", "remove", "said"),
    [
        pytest.param([], ["x"], "there are: a and b", id="a site that is not there"),
        pytest.param(["a:workers=1"], [], "already", id="a site that is there"),
        pytest.param([], ["a", "b"], "no site is left", id="all sites"),
    ],
)
def test_an_impossible_change_is_refused(add: list[str], remove: list[str], said: str) -> None:
    with pytest.raises(BadWhatIf, match=said):
        with_changes(HERE, add, remove)
