"""Watches the wire: nothing leaves a site of declared data but what its admin lets out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import site_data
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.federated.config import RunConfig, parse_config
from fedpilot.federated.errors import ClientFailed, FederatedError, NoUsableUpdate
from fedpilot.federated.federation.remote.remote_run import exit_code_of_failure
from fedpilot.federated.federation.sites.sources import OneRay
from fedpilot.federated.prepare.inputs.data_at_sites import disclosed_by
from fedpilot.federated.prepare.user_code.user_sources import digest_of
from fedpilot.federated.site.disclosure.disclosure_gate import IN_THE_LOG
from fedpilot.mediator import LinkedSite, Notify, Payload, Site, SiteContext
from fedpilot.mediator.agent.runner.participation import RunParticipation, WorkloadCheck
from fedpilot.mediator.agent.runner.policy_filter import PolicedSite
from fedpilot.mediator.agent.site_config.site_files import read_site_file
from fedpilot.mediator.errors import PolicyRefused
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.wire.failures import error_of, told
from fedpilot.mediator.wire.payloads import header_json, write

EAST = {"anna": 20, "benedict": 12, "cleopatra": 9, site_data.LOUD: 6}
WEST = {"dorothea": 15, "emilia": 11}
POLICY = {"datasets": {"scans": {"users": ["mary"]}}, "code_digests": ["any"]}
LOSS = "torch.nn.functional:cross_entropy"

LEAVES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "promised": {"vnodes": int},
    "done": {},
    "chosen": {"execution": list, "reason": str},
    "partial": {"partial": dict, "busy_seconds": float, "training_seconds": float, "digests": dict,
                "fewest": int, "squares": int},
    "tally": {"tally": list, "clients": int, "on": str},
    "hosted": {"client": int, "samples": type(None)},
    "node": {"state": str, "worker": str, "reason": str, "seconds": (float, type(None)),
             "trail": list, "samples": type(None)},
    "released": {},
    "aggregated": {},
    "closing": {},
    "graph_trained": {"absent": list, "exchange": int},
    "states": {},
    "states_taken": {"problem": str},
    "nodes_evaluated": {},
    "worker_ready": {"site": str, "worker": int, "pid": int, "host": str},
    "gang_notice": {"site": str, "seconds": float, "reason": str},
    "gang_preempted": {"site": str, "reason": str},
    "gang_regained": {"site": str, "workers": int},
    "worker_lost": {"site": str, "worker": int, "reason": str, "held": int},
    "clients_done": {"round": int, "done": int, "of": int, "part": str},
}  # fmt: skip
"""All that may leave, by kind: a header's keys, and the types of what they say."""
ABOUT_SINGLE_CLIENTS = ("states", "nodes_evaluated")
"""What leaves on a graph, where counts are exact."""
ON_A_RING: dict[str, Any] = {
    "federation__clients_per_round": None,
    "federation__topology": "ring",
    "federation__aggregation_strategy": "dpsgd",
}


class Wire:
    """All bytes that have left the sites, and what they said."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes: list[bytes] = []
        self.said: list[Payload] = []

    def take(self, payload: Payload) -> Payload:
        self.said.append(payload)
        self.bytes.append(f"{payload.kind} {header_json(payload.header)}".encode())
        if payload.tensors:
            _, blob = write(payload, self._folder)
            assert blob is not None
            self.bytes.append((self._folder / blob.digest).read_bytes())
        return payload

    def fail(self, site: str, error: BaseException) -> Exception:
        failure = told(error)
        self.bytes.append(failure.SerializeToString())
        return error_of(site, failure)


class WatchedLink:
    """A runner's part behind a link; what it answers goes over the wire as it would be sent."""

    def __init__(self, name: str, part: RunParticipation, wire: Wire) -> None:
        self._name, self._part, self._wire = name, part, wire

    def ask(self, verb: str, payload: Payload, **_: Any) -> Future[Payload]:
        sent: Future[Payload] = Future()
        asked = WorkloadCheck(payload.kind, header_json(payload.header), "")

        def send(done: Future[Payload]) -> None:
            try:
                sent.set_result(self._wire.take(done.result()))
            except Exception as error:
                sent.set_exception(self._wire.fail(self._name, error))

        try:
            self._part.act(verb, payload, asked).add_done_callback(send)
        except Exception as error:
            sent.set_exception(self._wire.fail(self._name, error))
        return sent

    def listen(self, notify: Notify) -> None:
        self.notify = notify


class WatchedSites(OneRay):
    """Sites behind watched links, that ask their policies."""

    def __init__(self, config: RunConfig, wire: Wire, policy: Path) -> None:
        super().__init__(config, ["east", "west"], FakeCluster([fake_machine("a", CPU=8)]))
        self._wire, self._policy = wire, policy

    def open(
        self, request: GangRequest, store: int, among: Collection[str], undo: ExitStack
    ) -> Sequence[Site]:
        inner = super().open(request, store, among, undo)
        return [LinkedSite(site.name, self._link(site)) for site in inner]

    def _link(self, site: Site) -> WatchedLink:
        context = SiteContext(name=site.name, data=self.data_at[site.name])
        policed = PolicedSite(site, context, self._policy)
        part = RunParticipation(
            site.name, lambda: policed, lambda event: link.notify(self._wire.take(event))
        )
        link = WatchedLink(site.name, part, self._wire)
        return link

    def told(self, spec: Payload) -> Payload:
        user = {"name": "mary", "role": "operator"}
        return Payload(kind=spec.kind, header={**spec.header, "user": user})


class Hospitals:
    """Two sites whose admins disclose as little as can be."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.folder = folder
        self.wire = Wire(folder / "blobs")
        self._undo = undo
        (folder / "blobs").mkdir()
        self.declare()

    def declare(self, **disclose: str) -> None:
        """Write what the admins declare."""
        folder, told = self.folder, {"disclose": disclose}
        self.files = [
            site_data.site_file(folder / "east.yaml", "scans",
                                site_data.column(folder / "east", EAST, **told)),
            site_data.site_file(folder / "west.yaml", "scans",
                                site_data.files(folder / "west", WEST, **told)),
        ]  # fmt: skip

    def federation(self, policy: dict[str, Any] = POLICY, **keys: Any) -> Federation:
        path = self.folder / "policy.yaml"
        path.write_text(json.dumps(policy))
        keys = {"federation__clients_per_round": 6, **keys}
        config = parse_config(site_data.config(self.files, self.folder / "runs", **keys))
        made = Federation(config, source=WatchedSites(config, self.wire, path))
        self._undo.callback(made.close)
        return made

    def join(self) -> None:
        """What leaves when the sites join."""
        for file in self.files:
            data = {name: each.to_json() for name, each in read_site_file(Path(file)).items()}
            self.wire.bytes.append(json.dumps(disclosed_by(data, "scans")).encode())

    def check(self) -> None:
        """Nothing that left has anything in it that is the sites' own."""
        assert self.wire.bytes
        x, _ = site_data.rows("anna", EAST["anna"])
        secrets: Sequence[bytes] = [
            *(name.encode() for name in (*EAST, *WEST)),
            str(self.folder).encode(),
            b"all.npz",
            b"patient",
            np.full(2, site_data.SECRET_VALUE, dtype="f4").tobytes(),
            x[5].tobytes(),
            x[5, :2].tobytes(),
            b"too much for me",
        ]
        for content in self.wire.bytes:
            for secret in secrets:
                assert secret not in content, (secret, content[:200])
        for payload in self.wire.said:
            check_shape(payload)


def check_shape(payload: Payload) -> None:
    """A payload says what its kind may say, and no more."""
    allowed = LEAVES[payload.kind]
    for key, value in payload.header.items():
        if payload.kind == "worker_ready" and key not in allowed:
            continue  # versions and the machine, of which a simulation tells the same
        assert key in allowed, (payload.kind, key)
        assert isinstance(value, allowed[key]), (payload.kind, key, value)
    if payload.kind == "partial":
        partial = payload.header["partial"]
        assert set(partial) == {"exponents", "bounds", "weight", "clients", "refused", "tally"}
        assert payload.header["digests"] == {}
        assert all(" that site " in each for each in partial["refused"])
        assert all(name.startswith(("sum/", "max/")) for name in payload.tensors)
    else:
        assert not payload.tensors or payload.kind in ("aggregated", *ABOUT_SINGLE_CLIENTS)
    if payload.kind == "node":
        texts = [why for _, what, why in payload.header["trail"] if what in ("fail", "lose")]
        assert set(texts) <= {IN_THE_LOG}


@pytest.fixture
def hospitals(tmp_path: Path) -> Iterator[Hospitals]:
    with ExitStack() as undo:
        folder = tmp_path / "sites"
        folder.mkdir()
        yield Hospitals(folder, undo)


def test_a_run_lets_out_sums_and_counts_only(hospitals: Hospitals, user_code: str) -> None:
    """With a client that is refused, and VirtualNodes that are looked at."""
    hospitals.join()
    keys = {
        "model__model_type": f"{user_code}:Explosive",
        "model__options": {"limit": 100.0},
        "evaluation__clients": "sampled",
    }
    federation = hospitals.federation(**keys)
    result = federation.run()
    assert [row["refused"] for row in result.rows] == [1] * 3
    node = federation["east/client_0"]
    node.materialize()
    assert "samples" not in node.explain()
    node.release()
    assert {payload.kind for payload in hospitals.wire.said} >= {
        "partial", "tally", "hosted", "node", "released", "worker_ready"
    }  # fmt: skip
    hospitals.check()


def test_on_a_graph_models_leave_too_where_counts_are_exact(
    hospitals: Hospitals, user_code: str
) -> None:
    """With a client whose training diverges."""
    hospitals.declare(counts="exact")
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": 100.0}}
    result = hospitals.federation(**keys, **ON_A_RING).run()
    assert [row["refused"] for row in result.rows] == [1] * 3
    assert {payload.kind for payload in hospitals.wire.said} >= {
        "graph_trained", "states", "states_taken", "partial", "tally", "nodes_evaluated"
    }  # fmt: skip
    hospitals.check()


def test_what_users_code_says_of_a_client_stays(hospitals: Hospitals, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 100.0}}
    federation = hospitals.federation(**keys)
    with pytest.raises(FederatedError) as raised:
        federation.run()
    assert isinstance(raised.value, ClientFailed)
    assert str(raised.value) == (
        f"a client of site east failed while training in round 1: {IN_THE_LOG}"
    )
    assert federation["east/client_3"].explain()
    hospitals.check()


def test_data_that_cannot_be_read_is_not_told_by_its_path(hospitals: Hospitals) -> None:
    federation = hospitals.federation()
    (hospitals.folder / "west" / "emilia.npz").write_bytes(b"no zip")
    with pytest.raises(FederatedError, match="scans cannot be used at site west"):
        federation.start()
    hospitals.check()


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_single_client_is_not_told_of(kind: str, hospitals: Hospitals) -> None:
    federation = hospitals.federation()
    with pytest.raises(PolicyRefused, match="which tells how many samples it has"):
        getattr(federation["west/client_0"], kind)()
    hospitals.check()


def test_all_clients_refused_are_a_number(hospitals: Hospitals, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": -100.0}}
    with pytest.raises(NoUsableUpdate, match="all 6 were not finite"):
        hospitals.federation(**keys).run()
    hospitals.check()


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        pytest.param({"federation__clients_per_round": 2},
                     "round 1 with one client of this site, which tells how many samples it has",
                     id="rounds that are known to come"),
        pytest.param({"federation__clients_per_round": 6, "evaluation__clients": "fraction",
                      "evaluation__fraction": 0.3},
                     "round 2 with one client of this site, which tells how many samples it has",
                     id="judging that is known to come"),
        pytest.param({"federation__aggregation_strategy": "median"},
                     "an algorithm that needs every client's update, which tells how many samples "
                     "each has", id="updates of all clients"),
    ],
)  # fmt: skip
def test_the_samples_of_a_single_client_are_asked_for_in_vain(
    keys: dict[str, Any], found: str, hospitals: Hospitals
) -> None:
    """Before anything is started."""
    federation = hospitals.federation(**keys)
    with pytest.raises(PolicyRefused) as raised:
        federation.start()
    assert raised.value.rule == "datasets.scans.disclose.counts of site.yaml"
    assert raised.value.found == found
    assert not any(payload.kind == "worker_ready" for payload in hospitals.wire.said)
    hospitals.declare(counts="exact")
    assert len(hospitals.federation(**keys).run().rows) == 3


# -- the policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "keys", "rule", "found"),
    [
        pytest.param({}, {}, "datasets", "data set scans, about which it has no rule",
                     id="data without a rule is nobody's"),
        pytest.param({"datasets": {"scans": {"users": ["bob"]}}}, {}, "datasets.scans.users",
                     "mary (operator)", id="another user's"),
        pytest.param({**POLICY, "models": ["mlp"]}, {}, "models", "logistic_regression",
                     id="another model"),
        pytest.param({**POLICY, "resources": {"cpus": 0.5}}, {}, "resources.cpus", "1 in 1 vnodes",
                     id="more than a run gets"),
        pytest.param({**POLICY, "code_digests": []}, {"training__loss_function": LOSS},
                     "code_digests", f"code with the digest {digest_of([LOSS.split(':')[0]])}",
                     id="code that is named"),
        pytest.param({**POLICY, "minimum_cohort": 5}, {}, "minimum_cohort",
                     "an answer of 4 clients", id="fewer clients than an answer needs"),
        pytest.param({**POLICY, "minimum_cohort": 2},
                     {"federation__aggregation_strategy": "median"}, "minimum_cohort",
                     "an answer of 1 client", id="updates of single clients"),
        pytest.param({**POLICY, "minimum_cohort": 2}, ON_A_RING, "minimum_cohort",
                     "a graph, on which each client's model goes to the sites of its neighbors",
                     id="models of single clients, to the sites of their neighbors"),
    ],
)  # fmt: skip
def test_a_policy_refuses_by_name_before_anything_is_loaded(
    policy: dict[str, Any],
    keys: dict[str, Any],
    rule: str,
    found: str,
    hospitals: Hospitals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = hospitals.federation(policy, **keys)
    monkeypatch.setattr("fedpilot.federated.site.workload.gather_here", None)
    with pytest.raises(PolicyRefused) as raised:
        federation.run()
    assert raised.value.rule == rule
    assert raised.value.found == found
    assert raised.value.site in ("east", "west")
    assert raised.value.exits_with == 3
    assert exit_code_of_failure(f"PolicyRefused: {raised.value}") == 3


def test_an_answer_of_too_few_clients_does_not_leave(hospitals: Hospitals) -> None:
    """Both clients of west are in the cohort of no round of two."""
    hospitals.declare(counts="exact")
    policy = {**POLICY, "minimum_cohort": 2}
    federation = hospitals.federation(policy, federation__clients_per_round=2)
    with pytest.raises(PolicyRefused, match="minimum_cohort: found an answer of 1 client"):
        federation.run()
    assert all(p.header["partial"]["clients"] >= 2 for p in hospitals.wire.said
               if p.kind == "partial")  # fmt: skip


PICKY = """
from torch import nn

class Picky(nn.Module):
    'Trains on samples that are far away only, until it has moved.'

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        far = float(x.detach().max()) > 100.0
        moved = float(self.linear.weight.detach().abs().max()) > 10.0
        outputs = self.linear(x)
        return outputs if not self.training or (far and not moved) else outputs * float("nan")
"""


def test_what_one_client_left_in_an_earlier_step_does_not_leave(
    hospitals: Hospitals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of its group has nobody; the losses and samples of the first one are its."""
    hospitals.declare(counts="exact")
    (tmp_path / "picky_models.py").write_text(PICKY)
    monkeypatch.syspath_prepend(str(tmp_path))
    federation = hospitals.federation(
        {**POLICY, "minimum_cohort": 2},
        model__model_type="picky_models:Picky",
        federation__clients_per_round=None,
        federation__topology="hierarchical",
        hierarchy__groups={"by": "label"},
        hierarchy__rounds_per_group=2,
    )
    with pytest.raises(PolicyRefused, match="minimum_cohort: found an answer of 1 client"):
        federation.run()
    sums = [payload for payload in hospitals.wire.said if payload.kind == "partial"]
    assert all(payload.header["partial"]["tally"][0] == 0 for payload in sums)
    hospitals.check()


def test_a_sum_over_steps_says_how_few_clients_a_step_had(
    hospitals: Hospitals, user_code: str
) -> None:
    hospitals.federation(
        model__model_type=f"{user_code}:Explosive",
        model__options={"limit": 100.0},
        federation__clients_per_round=None,
        federation__topology="hierarchical",
        hierarchy__groups={"by": "label"},
        hierarchy__rounds_per_group=2,
    ).run()
    sums = [payload.header for payload in hospitals.wire.said if payload.kind == "partial"]
    assert sorted(each["fewest"] for each in sums) == [2] * 3 + [3] * 3
    hospitals.check()
