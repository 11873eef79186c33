"""What one site may add to a round is bounded; who adds more is named and left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import site_data
from federations import Log, raising
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation
from fedpilot.federated.cli.runs.group import runs
from fedpilot.federated.core.rounds.participation import SiteRefused, TooFewSites
from fedpilot.federated.errors import ConfigError, ModelNotFinite
from fedpilot.federated.federation.coordinator.site_limits import (
    RefusedAnswer,
    out_for_good,
    read_refusals,
)
from lying_sites import SLY, TEN, Change, LyingSite, heavy, huge, out_of_range, partial
from shaky_sites import ShakySite

HONEST = ("aix", "bern")
OPEN = {"ids": "exact", "counts": "exact"}


class Country:
    """Hospitals with two patients each, whose data never moves."""

    def __init__(self, folder: Path, undo: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._undo, self._patch = folder, undo, patch
        self.log = Log()

    def federation(
        self,
        sites: tuple[str, ...],
        lies: Mapping[str, Change] | None = None,
        *observers: Callable[[Event], None],
        lost: tuple[str, ...] = (),
        disclose: Mapping[str, str] | None = None,
        samples: Mapping[str, int] | None = None,
        clients: Mapping[str, tuple[str, ...]] | None = None,
        **keys: Any,
    ) -> Federation:
        kind = ShakySite if lost else LyingSite
        self._patch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", kind)
        self._patch.setattr(LyingSite, "lies", lies or {})
        self._patch.setattr(LyingSite, "rounds", [])
        self._patch.setattr(ShakySite, "moments", {site: {0} for site in lost})
        self.log = Log()
        files = []
        for site in sites:
            count = (samples or {}).get(site, 12)
            names = (clients or {}).get(site, (site,))
            held = {f"{name}-{number}": count for name in names for number in (1, 2)}
            declared = site_data.files(self.folder / site, held, disclose=dict(disclose or OPEN))
            files.append(site_data.site_file(self.folder / f"{site}.yaml", "scans", declared))
        made = Federation(
            site_data.config(
                files,
                self.folder / "runs",
                federation__clients_per_round=None,
                federation__rounds=3,
                **keys,
            ),
            observers=[self.log, *observers],
            cluster=FakeCluster([fake_machine("a", CPU=32)]),
            sites=sites,
        )
        self._undo.callback(made.close)
        return made

    def told(self, event: str) -> dict[str, str]:
        """The reason by site."""
        return {fields["site"]: fields["reason"] for fields in self.log.of(event)}


@pytest.fixture
def country(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with ExitStack() as undo:
        yield Country(tmp_path, undo, monkeypatch)


BOUNDED: dict[str, Any] = {
    "participation__quorum": 0.1,
    "sites__min_sites": 2,
    "robustness__max_update_norm": 100.0,
}


def test_ten_lying_sites_leave_the_honest_ones_model_as_it_is_without_them(
    country: Country,
) -> None:
    sites = (*HONEST, *TEN)
    calm = country.federation(sites, lost=tuple(TEN), **BOUNDED).run()
    assert [row["clients"] for row in calm.rows] == [4] * 3
    federation = country.federation(sites, TEN, **BOUNDED)
    result = federation.run(run_id="lies")
    assert result.digest == calm.digest
    assert [row["clients"] for row in result.rows] == [4] * 3
    assert [row["model"] for row in result.rows] == [row["model"] for row in calm.rows]
    assert not country.log.of("grid_coarsened")
    assert set(country.told("site_refused")) == set(country.told("site_lost")) == set(TEN)
    assert set(result.rows[0]["left_out"]) == set(TEN)
    assert set(result.rows[1]["left_out"]) == set(SLY), "they had another chance"
    assert set(result.rows[1]["sites"]) == set(HONEST)
    assert "left_out" not in result.rows[2]
    kept = read_refusals(result.folder / "journal")
    assert {each.site for each in kept if each.quarantined} == set(TEN)
    assert [each.site for each in kept if not each.quarantined] == sorted(
        SLY, key=[each.site for each in kept].index
    )


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        pytest.param(heavy(10**15), "`weight` is 1000000000000000, wanted 24", id="counts"),
        pytest.param(partial(weight=10**15), "wanted the 24 samples of its tally", id="weight"),
        pytest.param(out_of_range(1 << 63), "the same on both", id="bounds"),
    ],
)
def test_where_all_clients_have_to_count_a_lie_ends_the_run_with_the_sites_name(
    lie: Change, found: str, country: Country
) -> None:
    federation = country.federation((*HONEST, "mallory"), {"mallory": lie})
    with pytest.raises(SiteRefused, match=f"round 1: site mallory: .*{found}"):
        federation.run(run_id="ended")
    manifest = json.loads((country.folder / "runs" / "ended" / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds"]) == ("failed", 0)


def test_where_too_few_sites_are_left_the_run_ends_with_the_name_of_who_lied(
    country: Country,
) -> None:
    keys = {**BOUNDED, "sites__min_sites": 3, "participation__wait_for_sites_s": 0.0}
    federation = country.federation((*HONEST, "mallory"), {"mallory": heavy(7)}, **keys)
    with pytest.raises(TooFewSites, match=r"site mallory.*: its answer is refused: `weight` is 7"):
        federation.run()


def test_honest_sites_that_leave_the_range_are_believed_and_give_the_bits_of_one_site(
    country: Country,
) -> None:
    keys: dict[str, Any] = {"training__learning_rate": 1e9, "evaluation__every": 3}
    apart = country.federation(("aix", "bern", "cork"), **keys).run()
    assert country.log.of("grid_coarsened")
    assert not country.log.of("site_refused")
    asked = [order for order in LyingSite.rounds if order[1] == 1]
    assert len(asked) > 2 * 3, "each has shown its size by itself"
    together = country.federation(
        ("dover",), clients={"dover": ("aix", "bern", "cork")}, **keys
    ).run()
    assert country.log.of("grid_coarsened")
    assert together.digest == apart.digest


def test_without_limits_a_site_that_adds_too_much_is_named_and_so_is_whose_part_ends_the_run(
    country: Country,
) -> None:
    lies = {"mallory": huge((1 << 61) - 1)}
    steps = {"federation__server_learning_rate": 1e33}
    federation = country.federation((*HONEST, "mallory"), lies, **steps)
    found = r"site mallory's part moved it most, .*aix 0\."
    with pytest.raises(ModelNotFinite, match=found) as it:
        federation.run(run_id="ended")
    assert "the norm of its update is" in country.told("site_stands_out")["mallory"]
    manifest = json.loads((country.folder / "runs" / "ended" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert manifest["rounds"] == it.value.round_number - 1
    assert "mallory" in manifest["failure"]


def test_who_was_left_out_before_an_interruption_is_out_for_good_after_it(
    country: Country,
) -> None:
    sites, lies = (*HONEST, "mallory"), {"mallory": TEN["sums"]}
    whole = country.federation(sites, lies, **BOUNDED).run()
    stop = raising(KeyboardInterrupt(), "round_started", 2)
    with pytest.raises(KeyboardInterrupt):
        country.federation(sites, lies, stop, **BOUNDED).run(run_id="stopped")
    assert [fields["quarantined"] for fields in country.log.of("site_refused")] == [False]
    resumed = country.federation(sites, lies, **BOUNDED).resume("stopped")
    assert [fields["quarantined"] for fields in country.log.of("site_refused")] == [True]
    assert resumed.digest == whole.digest


def test_a_site_that_lied_in_two_rounds_stays_out_of_a_resumed_run_though_it_is_honest_now(
    country: Country,
) -> None:
    sites, lies = (*HONEST, "mallory"), {"mallory": TEN["sums"]}
    whole = country.federation(sites, lies, **BOUNDED).run()
    stop = raising(KeyboardInterrupt(), "round_started", 3)
    with pytest.raises(KeyboardInterrupt):
        country.federation(sites, lies, stop, **BOUNDED).run(run_id="stopped")
    assert [fields["quarantined"] for fields in country.log.of("site_refused")] == [False, True]
    resumed = country.federation(sites, **BOUNDED).resume("stopped")
    assert "refused in rounds 1 and 2" in country.told("site_lost")["mallory"]
    assert "mallory" not in {site for site, _ in LyingSite.rounds}
    assert resumed.digest == whole.digest


def test_a_site_that_could_not_be_right_once_is_asked_again_in_a_resumed_run(
    country: Country,
) -> None:
    sites, lies = (*HONEST, "mallory"), {"mallory": TEN["nan"]}
    stop = raising(KeyboardInterrupt(), "round_started", 2)
    with pytest.raises(KeyboardInterrupt):
        country.federation(sites, lies, stop, **BOUNDED).run(run_id="stopped")
    assert [fields["quarantined"] for fields in country.log.of("site_refused")] == [True]
    resumed = country.federation(sites, **BOUNDED).resume("stopped")
    assert not country.log.of("site_lost")
    assert [row["clients"] for row in resumed.rows] == [4, 6, 6]


LIMIT, LIE = False, True


@pytest.mark.parametrize(
    ("refusals", "out"),
    [
        pytest.param([(1, LIE)], "", id="once"),
        pytest.param([(1, LIMIT), (1, LIE)], "", id="twice in one attempt at a round"),
        pytest.param([(1, LIMIT), (4, LIE)], "rounds 1 and 4", id="in two rounds"),
        pytest.param([(2, LIE), (2, LIE)], "round 2 twice", id="again after a resume"),
        pytest.param([(1, LIE), (2, LIE), (5, LIE)], "rounds 1, 2 and 5", id="in many rounds"),
    ],
)
def test_which_sites_a_resumed_run_does_without(refusals: list[tuple[int, bool]], out: str) -> None:
    kept = [
        RefusedAnswer(round_number=number, site="mallory", reason="no", quarantined=quarantined)
        for number, quarantined in refusals
    ]
    found = out_for_good(kept)
    assert list(found) == (["mallory"] if out else [])
    assert f"refused in {out}" in found["mallory"] if out else not found


@pytest.mark.parametrize(
    ("tally", "found"),
    [
        pytest.param([10**15, 10**15, 0, 0], "samples of its tally is 1000000000000000", id="many"),
        pytest.param([24, 24, 0, 0, 24], "24 samples without a loss", id="no losses"),
    ],
)
def test_who_judges_more_than_its_clients_hold_does_not_count(
    tally: list[int], found: str, country: Country, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LyingSite, "about", "evaluate")
    lies: dict[str, Change] = {"mallory": lambda a: replace(a, header={**a.header, "tally": tally})}
    rows = country.federation((*HONEST, "mallory"), lies, **BOUNDED).run().rows
    assert found in country.told("site_refused")["mallory"]
    assert [row["clients"] for row in rows] == [6, 4, 4]
    assert all(0.0 <= row["accuracy"] <= 1.0 for row in rows)


def test_a_run_shows_what_each_site_added_and_who_was_refused(country: Country) -> None:
    sites, lies = (*HONEST, "mallory"), {"mallory": heavy(7)}
    country.federation(sites, lies, **BOUNDED).run(run_id="shown")
    show = ["show", "shown", "--folder", str(country.folder / "runs")]
    told = CliRunner().invoke(runs, show)
    assert re.search(
        r"\nsites +aix: 2 clients, share 0\.5000, norm 0\.\d+, cosine -?\d", told.output
    )
    assert "\nrefused   mallory in round 1: its answer is refused: `weight` is 7" in told.output
    document = json.loads(CliRunner().invoke(runs, [*show, "--json"]).output)
    assert set(document["sites"]) == set(HONEST)
    (refusal,) = document["refused"]
    assert (refusal["site"], refusal["round"], refusal["quarantined"]) == ("mallory", 1, True)


def test_a_site_with_too_large_a_share_is_left_out(country: Country) -> None:
    sites = ("aix", "bern", "cork")
    keys = {"participation__quorum": 0.1, "robustness__max_site_share": 0.5}
    samples = {"aix": 50}
    federation = country.federation(sites, samples=samples, **keys)
    result = federation.run()
    assert [row["clients"] for row in result.rows] == [4] * 3
    reason = "its share of the round is more than `robustness.max_site_share` (0.5) of it"
    assert country.told("site_refused") == {"aix": reason}
    assert result.rows[0]["sites"]["bern"]["share"] == 0.5
    calm = country.federation(
        sites, lost=("aix",), samples=samples, participation__quorum=0.1
    ).run()
    assert result.digest == calm.digest


def test_a_limit_that_its_sites_cannot_keep_is_refused_before_anything_starts(
    country: Country,
) -> None:
    with pytest.raises(ConfigError, match=r"max_site_share\n  found: +0\.3 of a round for each"):
        country.federation(("aix", "bern", "cork"), robustness__max_site_share=0.3)
    country.federation(("aix", "bern", "cork"), robustness__max_site_share=0.34)


@pytest.mark.parametrize(
    ("disclose", "share"),
    [
        pytest.param({"counts": "exact"}, 0.4255, id="exactly"),
        pytest.param({"counts": "rounded"}, 0.4, id="about"),
        pytest.param({}, None, id="not at all"),
    ],
)
def test_a_share_of_the_samples_is_told_as_the_samples_are(
    disclose: dict[str, str], share: float | None, country: Country
) -> None:
    federation = country.federation(
        ("aix", "bern", "cork"),
        disclose=disclose or {"ids": "none"},
        samples={"aix": 20, "bern": 15},
    )
    (row, *_) = federation.run().rows
    told = row["sites"]["aix"]
    assert (told["clients"], told["share"]) == (2, share)
    assert 0 < told["norm"] < 10
    assert -1 <= told["cosine"] <= 1
    # Beside `training_seconds` of all sites, their paces would tell their samples.
    assert (told["seconds_per_sample"] is not None) == (disclose.get("counts") == "exact")
