"""Federation: a configuration come alive: its clients, its gang, its global model, its runs.

Making one loads the data and checks everything; nothing is reserved or started until a VirtualNode
is materialized or `run` is called. `close` (or leaving the `with` block) ends what was started.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedpilot.fabric.host.interruptions import is_interruption
from fedpilot.fabric.host.users import current_user
from fedpilot.mediator import FederationMediator, Payload
from fedpilot.mediator.core.links import LinkUse, LinkWatch
from fedpilot.mediator.federation.futures import then
from fedpilot.mediator.federation.order_router import ProblemOf
from fedpilot.mediator.wire.blobs.full_disk import is_full

from ..algorithms import algorithm_of
from ..config import (
    as_before,
    differences,
    identity,
    load_config,
    located,
    parse_config,
    to_yaml,
    with_execution,
)
from ..config.schema import RunConfig
from ..config.schema.rules import share_conflicts
from ..config.telling import told
from ..core.algorithm import Needs
from ..core.lifecycle import NodeState
from ..core.population.cohort_members import Membership
from ..core.population.federated_data import described
from ..core.population.groups import Groups
from ..core.population.partition import PartitionSummary, describe
from ..core.population.sampling import cohort
from ..core.proof.environment_diff import Difference, Facts
from ..core.proof.node_check import check_node
from ..core.state import Array, State, digest
from ..core.sums.partial_check import AnswerRefused
from ..core.user_code.user_errors import failure_of, trace_of
from ..errors import ConfigError, FederatedError, Problem, RunRefused
from ..prepare.budgets import rounds_within
from ..prepare.gang_request import gang_request, object_store_bytes, set_aside, uncollected
from ..prepare.grouping import steps_of
from ..prepare.user_code import UserCode, code_here
from ..prepare.user_sources import import_paths
from .continuing import ROUNDS, Parent, find
from .coordinator.coordinator import Coordinator, Finished, GlobalModel, execution_of
from .coordinator.step_watch import StepWatch
from .events import Event, Observer, event
from .lifetime import Lifetime
from .run_folder.folder import RunFolder, new_run_id
from .run_record import RunRecord, RunResult
from .sites.event_filter import Hearing
from .sites.sources import SiteSource, StartedRun, sites_here
from .sites.workforce import Workforce
from .virtual_node import VirtualNode

if TYPE_CHECKING:
    from torch import nn

    from fedpilot.fabric import Cluster

    from ..prepare.inputs import Materials

WORKLOAD = "federated"
GO_ON = "; a new run can go on to more rounds: `fedpilot run --from`"


class Federation:
    """Clients by id (`federation["client_7"]`), and runs over them."""

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path,
        *,
        overrides: Sequence[str] = (),
        observers: Sequence[Observer] = (),
        search: Sequence[str] = (),
        cluster: Cluster | None = None,
        sites: Sequence[str] | None = None,
        source: SiteSource | None = None,
        name: str = "",
        user: str = "",
        ahead: bool = False,
        code: UserCode | None = None,
    ) -> None:
        """Load and check a configuration: a file, a mapping or a RunConfig.

        `overrides` are `a.b=c` as after `--set`. Your own modules are looked for in the working
        folder, beside the file and in the folders of `search`. `cluster` stands in for Ray (tests).
        `sites` are as many parts of this process, each with its own gang, on the one Ray, in the
        place of those that the config asks for; so are the config's on a `cluster`.
        `source` provides the sites in the place of all that; folders here are nothing to them.
        `name` is what gangs and runs are called that have no other; left out, the file's.
        `user` is whose gangs they are; left out, the user of this process.
        `ahead` begins to start private Rays as soon as the config is read, beside all other
        loading: for those who will run at once. `code` is what the config names of the user's own
        modules; left out, as it lies in folders. Raises ConfigError for anything that is wrong,
        before anything is started, or after what was begun `ahead` has ended.
        """
        self._paths = () if source is not None else import_paths(config, search)
        sys.path.extend(path for path in self._paths if path not in sys.path)
        self._name = name or "federation"
        self._user = user or current_user()
        self._run_id = ""
        self._located: Callable[[ConfigError], ConfigError] = lambda error: error
        """With where the keys of its problems stand."""
        if isinstance(config, str | Path):
            self._name = name or Path(config).stem
            self._located = partial(located, path=config, overrides=overrides)
            self.config = load_config(config, overrides)
        else:
            parsed = config if isinstance(config, RunConfig) else parse_config(config, overrides)
            self.config = parsed
        self._observers = list(observers)
        self._emit_lock = threading.Lock()
        self._watch = StepWatch(self._emit)
        with ExitStack() as undo:
            self._source = source or sites_here(self.config, sites, cluster)
            undo.callback(self._source.close)
            if ahead:
                self._source.begin()
            try:
                self.code = code or code_here(self.config)
                """What the config names of the user's own modules."""
                with self._watch.step("loading"):
                    self._materials = self._gathered()
                if source is None or self.has_site_data:
                    self._check_shares(len(self._sites))
            except ConfigError as error:
                raise self._located(error) from error
            self._life = Lifetime(undo.pop_all())
        self._hearing = Hearing()
        self._mediator: FederationMediator | None = None
        self._workforce = Workforce()
        self._compiling: set[tuple[str, str]] = set()
        """Machines, by site, of which it was said that they compile."""
        self._model = GlobalModel(0, self._materials.initial, {}, digest(self._materials.initial))

    def _gathered(self) -> Materials:
        """What the run starts from; of data at sites, what is disclosed of it."""
        if self.config.data.from_ is None:
            return _checked(self.config)
        name, disclosed = self.config.data.dataset or "", self._source.disclosed()
        held = {site: sets[name] for site, sets in disclosed.items() if name in sets}
        return _checked(
            self.config, {site: held[site] for site in self._source.names if site in held}
        )

    def _check_shares(self, sites: int) -> None:
        """ConfigError for a limit on shares that so many sites cannot keep."""
        found = [
            Problem(key=each.key, found=each.found, allowed=each.allowed)
            for each in share_conflicts(self.config.robustness, sites)
        ]
        if found:
            raise ConfigError(found)

    @property
    def _sites(self) -> tuple[str, ...]:
        """Those that clients may be assigned to: all, or those with the run's data."""
        names, union = self._source.names, self._materials.union
        return names if union is None else tuple(site for site in names if site in union.sites)

    # -- clients ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The population."""
        return self._materials.population

    def __getitem__(self, client_id: str) -> VirtualNode:
        """A client, virtual until it is needed; UnknownClient (a KeyError) if there is none."""
        return VirtualNode(self, self._materials.data.partition.index_of(client_id))

    def __contains__(self, client_id: object) -> bool:
        try:
            return isinstance(client_id, str) and self[client_id] is not None
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The clients' ids, one after another."""
        return (self.client_id(index) for index in range(len(self)))

    def client_id(self, index: int) -> str:
        """The id of the client at a place in the population."""
        return self._materials.data.partition.client_id(index)

    def describe(self) -> PartitionSummary:
        """How the samples lie on the clients, as far as that is known here."""
        if (union := self._materials.union) is not None:
            return described(union)
        return describe(self._materials.data.partition, self._materials.data.y)

    # -- the model ----------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Rounds that the global model has seen."""
        return self._model.round_number

    @property
    def state(self) -> Mapping[str, Array]:
        """The global model's tensors."""
        return self._model.state

    @property
    def parameters(self) -> int:
        """Numbers in the model's state."""
        return self._materials.parameters

    @property
    def identity(self) -> str:
        """What decides the bits of a run's result, as one hash.

        With `execution: auto` it is the run's own after `start` or `settle_execution`, which find
        out what that means.
        """
        return self._identity_of(self.config)

    def _identity_of(self, config: RunConfig) -> str:
        return identity(config, self.code.digest, self._materials.data_digest)

    @property
    def code_digest(self) -> str:
        """SHA-256 of the archive of the user's own modules that the config names."""
        return self.code.digest

    @property
    def has_site_data(self) -> bool:
        """Whether the data lies at the sites, which then are those that declare it."""
        return self._materials.union is not None

    @property
    def data_digest(self) -> str:
        """SHA-256 over the samples, the test set among them."""
        return self._materials.data_digest

    @property
    def cohort_size(self) -> int:
        """Clients per round; of groups, in each of the rounds that they have to themselves."""
        steps, groups = steps_of(self.config), self.groups
        if steps is None or groups is None:
            return self._materials.cohort_size
        return steps.clients_of_step(groups)

    @property
    def groups(self) -> Groups | None:
        """Who belongs to which group, if there are any and their samples are here."""
        return self._materials.data.groups

    @property
    def bytes_of_updates(self) -> int:
        """Bytes of a round's updates where the algorithm keeps every one; 0 where it sums them."""
        if algorithm_of(self.config.federation).needs is Needs.SUM:
            return 0
        return self.cohort_size * self._materials.bytes_of_update

    def rounds_within_budget(self) -> int | None:
        """How many rounds `traffic` is enough for, if nothing is sent twice; None without limits.

        By the sites of the config: a mediator's may be more.
        """
        each = -(-self.cohort_size // len(self._sites))
        clients = dict.fromkeys(self._sites, each)
        return rounds_within(self.config, self._materials.costs(self.config), clients)

    @property
    def bytes_of_round(self) -> int:
        """The most that a round moves to one site and from it, by the model's tensors."""
        return self._materials.costs(self.config).at_least

    def module(self) -> nn.Module:
        """The global model as a PyTorch module of its own."""
        import torch

        from ..engine.training.modules import fitted
        from ..models import build

        data, model = self._materials.data, self.config.model
        built = build(model.model_type, model.options, data.input_shape, data.num_classes)
        module = fitted(built, data.x.dtype)
        module.load_state_dict({n: torch.tensor(a) for n, a in self._model.state.items()})
        return module

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Reserve the gang and start its workers; does nothing if they are there."""
        self._life.start(self._begin)
        return self

    def _begin(self, undo: ExitStack) -> None:
        self._mediator = self._start(undo)

    def _start(self, undo: ExitStack) -> FederationMediator:
        started = time.perf_counter()
        with self._watch.step("execution"):
            self.settle_execution()
        request = gang_request(self.config, self._run_id or self._name, self._user)
        store = object_store_bytes(self._materials) + self.bytes_of_updates
        start_s = self.config.resources.start_timeout
        wait_s = self.config.participation.wait_for_sites_s
        step, within_s = ("ray", start_s) if self._source.brings_ray else ("sites", wait_s)
        with self._watch.step(step, within_s):
            sites = self._source.open(request, store, self._sites, undo)
        self._check_shares(len(sites))
        self._emit("cluster_ready", seconds=round(time.perf_counter() - started, 3))
        stateful = self.config.training.client_update is not None
        mediator = FederationMediator(
            sites,
            assignment=self.config.federation.assignment,
            # What a client remembers is at its site: elsewhere it would be another client.
            replacement=self.config.participation.replacement and not stateful,
            counted=self._source.counted,
        )
        undo.callback(self._forget_mediator)
        undo.callback(mediator.close)
        self._life.check()
        with self._watch.step("gang", request.timeout_s):
            promises = mediator.reserve(
                request,
                min_sites=self._source.least,
                required=self.config.sites.required,
            )
        self._emit(
            "gang_reserved",
            vnodes={site: promise.vnodes for site, promise in promises.items()},
            seconds=round(time.perf_counter() - started, 3),
        )
        union = self._materials.union
        mediator.assign(len(self), None if union is None else union.pinned)
        specs = {site: self.spec_of(site) for site in self._sites}
        self._life.check()
        with self._watch.step("workers", start_s, told_by_others=True):
            mediator.start(WORKLOAD, specs, self._on_site_event)
        self._compare_workers()
        self._emit(
            "workers_ready",
            workers=len(self.workers),
            seconds=round(time.perf_counter() - started, 3),
        )
        self._life.check()
        links = LinkWatch(self._materials.costs(self.config).of_a_site)
        run = StartedRun(
            mediator=mediator,
            spec_of=self.spec_of,
            round_number=lambda: self.round,
            passed=self._say_passed_over,
            link_used=partial(self._say_slow, links),
        )
        self._source.follow(run, undo)
        return mediator

    def _compare_workers(self, before: Sequence[Facts] = ()) -> None:
        """With each other and those of `before`; RunRefused where they must be alike."""
        if self.config.run.reproducible == "strict":
            self._workforce.check_alike(before)
            return
        for each in before:
            self._say_differing(self._workforce.remembered(each))

    def settle_execution(self) -> None:
        """Settle how a chunk is computed, once for all sites, before any of them starts.

        `config` has it afterwards, and `identity` is that of a run. ConfigError for an execution
        that does not suit the model.
        """
        from ..prepare.execution_choice import settled

        try:
            self.config, reason = settled(self.config, self._materials)
        except ConfigError as error:
            raise self._located(error) from error
        training = self.config.training
        self._emit(
            "execution_chosen",
            execution=training.execution,
            chunk_size=training.chunk_size,
            execution_model=training.execution_model,
            reason=reason,
        )

    def spec_of(self, site: str) -> Payload:
        """What a site is told of this federation. UnionError if it has none of the run's data."""
        from ..prepare.inputs import hand_over

        union = self._materials.union
        apart = self._source.apart or union is not None
        header = {
            **told(self.config),
            "paths": list(self._paths),
            "materials": "" if apart else hand_over(self._materials),
        }
        if union is not None:
            header["place"] = union.place_of(site).to_json()
        if self.config.run.reproducible == "strict" and (there := self.workers):
            header["like"] = there[0]
        return self._source.told(Payload(kind="federation", header=header))

    def _forget_mediator(self) -> None:
        self._mediator = None
        self._workforce.forget()

    def close(self) -> None:
        """End the workers, give the gang back, end a private Ray; may be called twice.

        Called while another thread starts it, it waits until that has given up.
        """
        self._life.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- runs ---------------------------------------------------------------------------------

    def run(
        self, *, run_id: str | None = None, progress: bool = False, parent: str | None = None
    ) -> RunResult:
        """Run all rounds in a new run folder; the global model moves with them.

        `progress` shows on stdout what `fedpilot run` would. With the id or the folder of an
        earlier run as `parent`, the run goes on where that stands, to the rounds of this
        configuration in all, and ends in the same bits as one run of that length. RunRefused if it
        would not.

        On Ctrl-C (KeyboardInterrupt) and on errors the folder is left so that `resume` continues;
        a run that never got its gang leaves none.
        """
        root = Path(self.config.outputs.folder)
        if parent is not None:
            return self._go_on(root, run_id or self._new_run_id(), find(root, parent), progress)
        folder = RunFolder.create(root, run_id or self._new_run_id(), to_yaml(self.config))
        with folder, self._showing(progress):
            return self._run(folder, resumed=False)

    def _go_on(self, root: Path, run_id: str, earlier: Path, progress: bool) -> RunResult:
        """Run what an earlier run lacks, in a folder of its own."""
        with RunFolder.reading(earlier) as reading:
            parent = Parent.of(reading)
            self.config = as_before(self.config, parent.config)
            parent.check(self.config, self._identity_of)
            hand_on = partial(parent.hand_on, self.config, self.identity)
            folder = RunFolder.create(root, run_id, to_yaml(self.config), hand_on)
        with folder, self._showing(progress):
            return self._run(folder, resumed=True, parent=parent)

    def resume(self, run_id: str, *, progress: bool = False) -> RunResult:
        """Continue an interrupted run; it ends in the same bits as one without interruption.

        RunRefused if there is no such run or this configuration would give other bits.
        """
        with RunFolder.open(Path(self.config.outputs.folder), run_id) as folder:
            self.config = as_before(self.config, load_config(folder.path / "config.yaml"))
            recorded = folder.manifest().get("identity", self.identity)
            # It may have died before it wrote down what `auto` means, and so before any round.
            undecided = with_execution(self.config, "auto", "auto")
            if recorded not in (self.identity, self._identity_of(undecided)):
                earlier = load_config(folder.path / "config.yaml")
                changed = "; ".join(differences(earlier, self.config)) or "its code or its data"
                more = "" if changed.partition(":")[0] != ROUNDS or ";" in changed else GO_ON
                raise RunRefused(
                    f"run {run_id} cannot be continued, since this changed: {changed}{more}"
                )
            with self._showing(progress):
                if folder.manifest().get("status") == "finished":
                    return self._finished_before(folder)
                return self._run(folder, resumed=True)

    def _finished_before(self, folder: RunFolder) -> RunResult:
        """A finished run resumed: it stays as it is, and nothing is started."""
        result, last = RunRecord(folder, self._emit).finished_before(), folder.load_checkpoint()
        if last is not None:
            self._model = GlobalModel(last.round_number, last.model, last.memory, result.digest)
        return result

    @contextmanager
    def _showing(self, progress: bool) -> Iterator[None]:
        if not progress:
            yield
            return
        from .report.progress import display_for

        with ExitStack() as undo:
            self._observe(undo.enter_context(display_for(sys.stdout, as_json=False)), undo)
            yield

    def _new_run_id(self) -> str:
        return new_run_id(self.config.run.name or self._name)

    def _run(self, folder: RunFolder, *, resumed: bool, parent: Parent | None = None) -> RunResult:
        started = time.perf_counter()
        record = RunRecord(folder, self._emit)
        self._run_id = folder.run_id
        status, failure, began = "failed", "", False
        finished: Finished | None = None
        with ExitStack() as undo:
            try:
                with self._watch.step("loading"):
                    self._say_started(record, parent)
                if self.config.outputs.tensorboard:
                    from .report.tensorboard import TensorBoardWriter

                    self._observe(undo.enter_context(TensorBoardWriter(folder.path)), undo)
                self._observe(folder.keep_output, undo)
                self.start()
                folder.write_config(to_yaml(self.config))
                folder.update_manifest(identity=self.identity)
                began = True
                folder.forget_failure()
                with self._watch.step("round"):
                    before = folder.manifest() if parent is None else parent.manifest
                    finished = self._rounds(folder, resumed, before.get("workers", ()))
                status = "finished"
            except BaseException as error:
                if is_interruption(error):
                    status, failure = "interrupted", "interrupted by the user"
                elif is_full(error):
                    status, failure = "interrupted", f"the disk is full: {error}"
                else:
                    failure = failure_of(error)
                    if began and (trace := trace_of(error)):
                        folder.write_failure(trace)
                raise
            finally:
                seconds = round(time.perf_counter() - started, 3)
                ending = {
                    "status": status,
                    "failure": failure,
                    "reason": failure if finished is None else finished.reason,
                    "rounds": self.round,
                    "digest": self._model.digest,
                    "seconds": seconds,
                }
                if began:
                    metric = self.config.evaluation.metric
                    with self._watch.step("ending"):
                        record.ended(ending, curves=self.config.outputs.curves, metric=metric)
                else:
                    record.never_began(ending)
        return record.result(finished, seconds)

    def _say_started(self, record: RunRecord, parent: Parent | None) -> None:
        from ..engine.training.modules import environment

        versions = {"fedpilot": version("fedpilot"), "python": platform.python_version()}
        record.started(
            self.config,
            self.describe(),
            clients_per_round=self.cohort_size,
            parameters=self.parameters,
            facts={
                "identity": self.identity,
                "data_digest": self.data_digest,
                "code_digest": self.code_digest,
                "initial_model": digest(self._materials.initial),
                "versions": {**environment(), **versions},
                "cpus": os.cpu_count(),
                "search": list(self._paths),
                **({} if parent is None else {"parent": parent.facts}),
            },
        )

    def _rounds(self, folder: RunFolder, resumed: bool, before: Sequence[Facts]) -> Finished:
        coordinator = self.coordinator(folder)
        if resumed:
            self._compare_workers(before)
        initial = self._materials.initial
        self._model = coordinator.recovered(initial) if resumed else coordinator.first(initial)
        written: list[dict[str, Any]] = []

        def write_workers() -> None:
            """Sites and workers may have come since."""
            if written != (workers := self.workers):
                folder.update_manifest(workers=workers)
                written[:] = workers

        def moved(model: GlobalModel) -> None:
            self.stand_at(model)
            write_workers()

        write_workers()
        with set_aside():
            return coordinator.run(self._model, moved)

    def coordinator(self, folder: RunFolder) -> Coordinator:
        """Who runs this federation's rounds and keeps their record in `folder`."""
        if self._mediator is None:
            raise FederatedError("the federation is not running")
        return Coordinator(
            self.config,
            roles=self._materials.roles,
            algorithm=algorithm_of(self.config.federation),
            mediator=self._mediator,
            folder=folder,
            identity=self.identity,
            emit=self._emit,
            cohort=(self._materials.cohort_size, self._materials.enough),
            membership=self._membership(),
            test_samples=len(self._materials.data.test_y),
            told=self._materials.told_of,
        )

    def _membership(self) -> Membership:
        groups = self.groups
        return Membership(
            population=len(self),
            asked=self._materials.cohort_size,
            seed=self.config.run.random_seed,
            index_of=self._materials.data.partition.index_of,
            groups=groups,
            known=steps_of(self.config) is None or groups is not None,
            samples_of=self._materials.samples_of(),
        )

    def stand_at(self, model: GlobalModel) -> None:
        """Make this the global model; clients then train the round after it."""
        self._model = model

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What every worker said of itself when it came up; nothing before `start`."""
        return self._workforce.all()

    def cohort(self, round_number: int) -> list[str]:
        """Ids of the clients that train in a round; of groups at sites, all that may."""
        steps, groups = steps_of(self.config), self.groups
        if steps is not None and groups is not None:
            clients = steps.clients_of_round(groups, round_number)
        else:
            size, seed = self._materials.cohort_size, self.config.run.random_seed
            clients = cohort(len(self), size, seed, round_number)
        return [self.client_id(index) for index in clients.tolist()]

    # -- for VirtualNodes ---------------------------------------------------------------------

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a VirtualNode's order to its site; starts the federation if needed."""
        self.start()
        if self._mediator is None:
            raise FederatedError("the federation is closed")
        header = {**order.header, "execution": execution_of(self.config)}
        order = replace(order, header=header)
        return self._mediator.deliver_to_client(
            index,
            order,
            round_number=self.round,
            purpose="node",
            problem_of=_problem_by(partial(self._check_node, order.kind)),
        )

    def _check_node(self, kind: str, answer: Payload) -> None:
        check_node(kind, answer.header, answer.tensors, self._materials.initial)

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of `model`, or of the global model."""
        if model is None:
            return self._model.digest, self._model.state
        for name in sorted(self._materials.initial.keys() | model.keys()):
            wanted, found = self._materials.initial.get(name), model.get(name)
            if _kind(wanted) != _kind(found):
                raise FederatedError(
                    f"this is not the state of the federation's model: {name!r} is {_kind(found)}, "
                    f"wanted {_kind(wanted)}"
                )
        return digest(model), model

    def show(self, index: int) -> Mapping[str, Any]:
        """What is known of a VirtualNode; starts nothing."""
        return self.ask_shown(index).result()

    def ask_shown(self, index: int) -> Future[Mapping[str, Any]]:
        """What is known of a VirtualNode, once its site has told it; starts nothing."""
        if self._mediator is None:
            nothing: Future[Mapping[str, Any]] = Future()
            nothing.set_result(
                {
                    "state": str(NodeState.VIRTUAL),
                    "worker": "",
                    "reason": "the federation is not running",
                    "samples": self._samples_of(index),
                    "trail": [],
                }
            )
            return nothing
        order = Payload(kind="node.show", header={"client": index})
        return then(self.ask_node(index, order), lambda node: node.header)

    def _samples_of(self, index: int) -> int | None:
        """How many samples a client holds; None if its site does not say."""
        if (union := self._materials.union) is None:
            return self._materials.data.partition.size(index)
        samples = union.samples()
        return None if samples is None else int(samples[index])

    def site_of(self, index: int) -> str:
        """The site that a client belongs to; empty before the gang is reserved."""
        return "" if self._mediator is None else self._mediator.assignment.site_of(index)

    def explain_assignment(self, index: int) -> str:
        """Why a client belongs to its site."""
        if self._mediator is None:
            return "not assigned until the gang is reserved"
        assignment = self._mediator.assignment
        return f"{assignment.site_of(index)}, since {assignment.explain(index)}"

    # -- events -------------------------------------------------------------------------------

    def _observe(self, observer: Observer, undo: ExitStack) -> None:
        self._observers.append(observer)
        undo.callback(self._observers.remove, observer)

    def _emit(self, name: str, **fields: Any) -> None:
        happened: Event = event(name, **fields)
        self._watch.heard(name, **fields)
        with self._emit_lock:
            for observer in tuple(self._observers):
                observer(happened)

    def _on_site_event(self, payload: Payload) -> None:
        if (fields := self._hearing.fields(payload)) is None:
            return
        new = self._workforce.joined(fields) if payload.kind == "worker_ready" else ()
        compiles = fields.get("compiles", "")
        self._emit(payload.kind, **fields)
        if compiles and (host := (fields["site"], fields.get("host", ""))) not in self._compiling:
            self._compiling.add(host)
            self._emit("kernels_compiled", site=host[0], host=host[1], what=compiles)
        self._say_differing(new)

    def _say_passed_over(self, site: str, reason: str) -> None:
        self._emit("site_passed_over", site=site, reason=reason)

    def _say_slow(self, links: LinkWatch, use: LinkUse) -> None:
        """Name a link whose transfers hold the rounds up."""
        if (slow := links.used(use, time.monotonic())) is not None:
            self._emit(
                "link_slow",
                site=slow.site,
                round=slow.round_number,
                seconds=round(slow.seconds, 1),
                bytes_per_second=round(slow.bytes_per_second),
            )

    def _say_differing(self, new: Sequence[Difference]) -> None:
        for each in new:
            self._emit("workers_differ", **asdict(each))


def _problem_by(check: Callable[[Payload], None]) -> ProblemOf:
    """What a check finds wrong with an answer, in words."""

    def problem_of(answer: Payload) -> str:
        try:
            check(answer)
        except AnswerRefused as error:
            return str(error)
        return ""

    return problem_of


def _checked(config: RunConfig, declared: Mapping[str, Any] | None = None) -> Materials:
    """What the config stands for; ConfigError for what cannot be."""
    from importlib.util import find_spec

    with uncollected():
        from ..prepare.inputs import gather, gather_declared

    if config.outputs.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError(
            [
                Problem(
                    key="outputs.tensorboard",
                    found="true, but tensorboardX is not installed",
                    allowed="false, or `pip install 'fedpilot[tensorboard]'`",
                )
            ]
        )
    return gather(config) if declared is None else gather_declared(config, declared)


def _kind(array: object) -> str:
    """What an entry of a state is, in words."""
    if array is None:
        return "nothing"
    if not isinstance(array, np.ndarray):
        return f"no NumPy array but {type(array).__name__}"
    return f"{array.dtype} of shape {array.shape}"
