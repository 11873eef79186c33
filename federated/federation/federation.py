"""Federation: what users hold: its clients by id, its global model, its runs.

Making one loads the data and checks everything; nothing is reserved or started until a VirtualNode
is materialized or `run` is called. `close` (or leaving the `with` block) ends what was started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpilot.fabric.host.users import current_user
from fedpilot.mediator import Payload

from ..config import load_config, located, parse_config
from ..config.schema import RunConfig
from ..core.population.groups import ClientGroups
from ..core.population.partitions.summary import PartitionSummary
from ..core.state import Array, State
from ..errors import ConfigError
from ..prepare.user_code import UserCode, code_here
from ..prepare.user_sources import import_paths
from .coordinator.coordinator import Coordinator
from .events import EventBus, Observer
from .run_folder.folder import RunFolder
from .runs.run_driver import RunDriver
from .runs.run_record import RunResult
from .setup.global_model import CurrentModel, GlobalModel, as_module
from .setup.loaded_config import LoadedConfig, Located, inputs_of
from .sites.gang_session import GangSession
from .sites.node_orders import NodeOrders
from .sites.sources import SiteSource, disclosed_to, sites_here
from .virtual_node import VirtualNode

if TYPE_CHECKING:
    from torch import nn

    from fedpilot.fabric import Cluster


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
        paths = () if source is not None else import_paths(config, search)
        sys.path.extend(path for path in paths if path not in sys.path)
        if not name:
            name = Path(config).stem if isinstance(config, str | Path) else "federation"
        read, placed = _read(config, overrides)
        self._events = EventBus(observers)
        with ExitStack() as undo:
            at = source or sites_here(read, sites, cluster)
            undo.callback(at.close)
            if ahead:
                at.begin()
            try:
                code = code or code_here(read)
                with self._events.step("loading"):
                    inputs = inputs_of(read, disclosed_to(read, at))
                self._loaded = LoadedConfig(
                    config=read, code=code, inputs=inputs, paths=paths, located=placed
                )
                if source is None or self.has_site_data:
                    self._loaded.check_shares(len(self._loaded.among(at.names)))
            except ConfigError as error:
                raise placed(error) from error
            self._model = CurrentModel(inputs.initial)
            self._gang = GangSession(
                at,
                self._loaded,
                self._model,
                self._events,
                name=name,
                user=user or current_user(),
                undo=undo.pop_all(),
            )
        self._nodes = NodeOrders(self._gang, self._loaded, self._model)
        self._runs = RunDriver(self._loaded, self._gang, self._model, self._events, name=name)

    @property
    def config(self) -> RunConfig:
        """The configuration; `start` and `settle_execution` settle in it what `auto` means."""
        return self._loaded.config

    @property
    def code(self) -> UserCode:
        """What the config names of the user's own modules."""
        return self._loaded.code

    # -- clients ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The population."""
        return self._loaded.inputs.population

    def __getitem__(self, client_id: str) -> VirtualNode:
        """A client, virtual until it is needed; UnknownClient (a KeyError) if there is none."""
        return VirtualNode(self, self._loaded.inputs.data.partition.index_of(client_id))

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
        return self._loaded.inputs.data.partition.client_id(index)

    def describe(self) -> PartitionSummary:
        """How the samples lie on the clients, as far as that is known here."""
        return self._loaded.population.describe()

    def cohort(self, round_number: int) -> list[str]:
        """Ids of the clients that train in a round; of groups at sites, all that may."""
        return self._loaded.population.cohort(round_number)

    @property
    def cohort_size(self) -> int:
        """Clients per round; of groups, in each of the rounds that they have to themselves."""
        return self._loaded.population.cohort_size

    @property
    def groups(self) -> ClientGroups | None:
        """Who belongs to which group, if there are any and their samples are here."""
        return self._loaded.population.groups

    @property
    def has_site_data(self) -> bool:
        """Whether the data lies at the sites, which then are those that declare it."""
        return self._loaded.inputs.union is not None

    @property
    def data_digest(self) -> str:
        """SHA-256 over the samples, the test set among them."""
        return self._loaded.inputs.data_digest

    @property
    def code_digest(self) -> str:
        """SHA-256 of the archive of the user's own modules that the config names."""
        return self.code.digest

    @property
    def identity(self) -> str:
        """What decides the bits of a run's result, as one hash.

        With `execution: auto` it is the run's own after `start` or `settle_execution`, which find
        out what that means.
        """
        return self._loaded.identity

    # -- the model ----------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Rounds that the global model has seen."""
        return self._model.now.round_number

    @property
    def state(self) -> Mapping[str, Array]:
        """The global model's tensors."""
        return self._model.now.state

    @property
    def parameters(self) -> int:
        """Numbers in the model's state."""
        return self._loaded.inputs.parameters

    def module(self) -> nn.Module:
        """The global model as a PyTorch module of its own."""
        return as_module(self.state, self.config, self._loaded.inputs.data)

    def stand_at(self, model: GlobalModel) -> None:
        """Make this the global model; clients then train the round after it."""
        self._model.now = model

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of `model`, or of the global model."""
        return self._model.or_other(model)

    # -- what rounds move ---------------------------------------------------------------------

    @property
    def bytes_of_updates(self) -> int:
        """Bytes of a round's updates where the algorithm keeps every one; 0 where it sums them."""
        return self._loaded.population.bytes_of_updates

    @property
    def bytes_of_round(self) -> int:
        """The most that a round moves to one site and from it, by the model's tensors."""
        return self._loaded.population.bytes_of_round

    def rounds_within_budget(self) -> int | None:
        """How many rounds `traffic` is enough for, if nothing is sent twice; None without limits.

        By the sites of the config: a mediator's may be more.
        """
        return self._loaded.population.rounds_within_budget(self._gang.sites)

    # -- start and close ----------------------------------------------------------------------

    def start(self) -> Self:
        """Reserve the gang and start its workers; does nothing if they are there."""
        self._gang.start()
        return self

    def settle_execution(self) -> None:
        """Settle how a chunk is computed, once for all sites, before any of them starts.

        `config` has it afterwards, and `identity` is that of a run. ConfigError for an execution
        that does not suit the model.
        """
        self._loaded.settle_execution(self._events.emit)

    def spec_of(self, site: str) -> Payload:
        """What a site is told of this federation. UnionError if it has none of the run's data."""
        return self._gang.spec_of(site)

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What every worker said of itself when it came up; nothing before `start`."""
        return self._gang.workers

    def close(self) -> None:
        """End the workers, give the gang back, end a private Ray; may be called twice.

        Called while another thread starts it, it waits until that has given up.
        """
        self._gang.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        if parent is not None:
            return self._runs.continue_from(parent, run_id, progress=progress)
        return self._runs.begin(run_id, progress=progress)

    def resume(self, run_id: str, *, progress: bool = False) -> RunResult:
        """Continue an interrupted run; it ends in the same bits as one without interruption.

        RunRefused if there is no such run or this configuration would give other bits.
        """
        return self._runs.resume(run_id, progress=progress)

    def coordinator(self, folder: RunFolder) -> Coordinator:
        """Who runs this federation's rounds and keeps their record in `folder`."""
        return self._runs.coordinator(folder)

    # -- single clients -----------------------------------------------------------------------

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a VirtualNode's order to its site; starts the federation if needed."""
        return self._nodes.send(index, order)

    def show(self, index: int) -> Mapping[str, Any]:
        """What is known of a VirtualNode; starts nothing."""
        return self.ask_shown(index).result()

    def ask_shown(self, index: int) -> Future[Mapping[str, Any]]:
        """What is known of a VirtualNode, once its site has told it; starts nothing."""
        return self._nodes.show(index)

    def site_of(self, index: int) -> str:
        """The site that a client belongs to; empty before the gang is reserved."""
        return self._nodes.site_of(index)

    def explain_assignment(self, index: int) -> str:
        """Why a client belongs to its site."""
        return self._nodes.explain_assignment(index)


def _read(
    config: RunConfig | Mapping[str, Any] | str | Path, overrides: Sequence[str]
) -> tuple[RunConfig, Located]:
    """The config, and what tells where in its file the keys of its problems stand."""
    if isinstance(config, str | Path):
        return load_config(config, overrides), partial(located, path=config, overrides=overrides)
    parsed = config if isinstance(config, RunConfig) else parse_config(config, overrides)
    return parsed, lambda error: error
