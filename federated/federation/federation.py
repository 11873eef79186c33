"""Federation: the object that users hold, with its clients by id, its global model and its runs.

Making one loads the data and checks everything; nothing is reserved or started until a VirtualNode
is materialized or `run` is called. `close` (or leaving the `with` block) ends what was started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpilot.common.host.users import current_user

from ..config import read_config
from ..config.schema import RunConfig
from ..core.population.partitions.summary import PartitionSummary
from ..core.state import Array
from ..errors import ConfigError
from ..prepare.user_code.user_code import UserCode, code_here
from ..prepare.user_code.user_sources import import_paths
from .clients.virtual_node import VirtualNode
from .events import EventBus, Observer
from .run_folder.folder import RunFolder
from .setup.global_model import CurrentModel, GlobalModel, as_module
from .setup.loaded_config import LoadedConfig, inputs_of
from .sites.gang_session import GangSession
from .sites.node_orders import NodeOrders
from .sites.sources import SiteSource, disclosed_to, sites_here

if TYPE_CHECKING:
    from torch import nn

    from fedpilot.fabric import Cluster

    from .clients.topology_manager import TopologyManager
    from .coordinator.coordinator import Coordinator
    from .runs.run_record import RunResult
    from .sites.kept_ray import KeptRay


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
        kept_ray: KeptRay | None = None,
        sites: Sequence[str] | None = None,
        source: SiteSource | None = None,
        name: str = "",
        user: str = "",
        ahead: bool = False,
        code: UserCode | None = None,
    ) -> None:
        """Load and check a config: a file, a mapping or a RunConfig.

        `overrides` are `a.b=c` as after `--set`. Python looks for your own modules in the working
        folder, beside the file and in the folders of `search`. `cluster` stands in for Ray (tests).
        `kept_ray` keeps the Ray of a single site for the next federation.
        `sites` names parts of this process, each with its own gang on the one Ray, in place of the
        config's sites; on a `cluster` the config's sites are such parts too. `source` provides the
        sites instead, and no folder here is searched. `name` is for gangs and runs without one; by
        default the file's. `user` owns the gangs; by default the user of this process. `ahead`
        begins to start private Rays as soon as the config is read, while the rest loads, for a run
        that follows at once. `code` is the user's code that the config names; by default it is read
        from its folders. Raises ConfigError before anything starts, or once the starts of `ahead`
        have been ended.
        """
        paths = () if source is not None else import_paths(config, search)
        sys.path.extend(path for path in paths if path not in sys.path)
        read, of_file, placed = read_config(config, overrides)
        name = name or of_file
        self._events = EventBus(observers)
        self._is_here = source is None
        with ExitStack() as undo:
            at = source or sites_here(read, sites, cluster, kept_ray)
            undo.callback(at.close)
            if ahead:
                at.begin()
            try:
                code = code or code_here(read)
                with self._events.step("loading"):
                    inputs = inputs_of(read, disclosed_to(read, at))
                self.loaded = LoadedConfig(
                    config=read, code=code, inputs=inputs, paths=paths, located=placed
                )
                """The config, the objects that it names, and what follows from them."""
                if source is None or inputs.union is not None:
                    self.loaded.check_shares(len(self.loaded.among(at.names)))
            except ConfigError as error:
                raise placed(error) from error
            self._model = CurrentModel(inputs.initial)
            self.gang = GangSession(
                at,
                self.loaded,
                self._model,
                self._events,
                name=name,
                user=user or current_user(),
                undo=undo.pop_all(),
            )
        from .runs.run_driver import RunDriver  # imports PyTorch, as far as it is needed now

        self.nodes = NodeOrders(self.gang, self.loaded, self._model)
        self._runs = RunDriver(self.loaded, self.gang, self._model, self._events, name=name)

    @property
    def config(self) -> RunConfig:
        """The config; `start` and `settle_execution` replace `auto` in it by a choice."""
        return self.loaded.config

    # -- clients ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The population."""
        return len(self.nodes)

    def __getitem__(self, client_id: str) -> VirtualNode:
        """A client, virtual until it is needed; UnknownClient (a KeyError) if there is none."""
        return VirtualNode(self.nodes, self.nodes.index_of(client_id))

    def __contains__(self, client_id: object) -> bool:
        try:
            return isinstance(client_id, str) and self[client_id] is not None
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The clients' ids."""
        return map(self.client_id, range(len(self)))

    def client_id(self, index: int) -> str:
        """The id of the client at a place in the population."""
        return self.nodes.client_id(index)

    def describe(self) -> PartitionSummary:
        """How the samples are divided over the clients, as far as known here."""
        return self.loaded.describe()

    @property
    def cohort_size(self) -> int:
        """Clients per round; with groups, in each round that a group trains by itself."""
        return self.loaded.cohort_size

    @property
    def topology(self) -> TopologyManager | None:
        """Who exchanges with whom; None if all clients exchange with the coordinator.

        With several sites it is a HybridTopologyManager, which knows where clients are once the
        federation has started.
        """
        return self.nodes.topology

    @property
    def data_digest(self) -> str:
        """SHA-256 over the samples, the test set among them."""
        return self.loaded.inputs.data_digest

    @property
    def graph_digest(self) -> str:
        """SHA-256 of a graph from a file, a library or your own code; empty for any other."""
        return self.loaded.graph_digest

    @property
    def code_digest(self) -> str:
        """SHA-256 of the archive of the user's own modules that the config names."""
        return self.loaded.code.digest

    @property
    def identity(self) -> str:
        """One hash of everything that decides the bits of a run's result.

        With `execution: auto` it equals the run's identity only after `start` or
        `settle_execution`.
        """
        return self.loaded.identity

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
        return self.loaded.inputs.parameters

    def module(self) -> nn.Module:
        """The global model as a new PyTorch module."""
        return as_module(self.state, self.config, self.loaded.inputs.data)

    def stand_at(self, model: GlobalModel) -> None:
        """Make this the global model; clients then train the round after it."""
        self._model.now = model

    # -- start and close ----------------------------------------------------------------------

    def start(self) -> Self:
        """Reserve the gang and start its workers; does nothing if they are up."""
        self.gang.start()
        return self

    def settle_execution(self) -> None:
        """Choose how a chunk is computed, once for all sites, before any of them starts.

        Afterwards `config` has the choice, and `identity` is a run's. Raises ConfigError for an
        execution that does not suit the model.
        """
        self.loaded.settle_execution(self._events.emit)

    def close(self) -> None:
        """End the workers, release the gang, end a private Ray; may be called twice.

        While another thread starts the federation, it waits until that thread has given up.
        """
        self.gang.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- runs ---------------------------------------------------------------------------------

    def run(
        self, *, run_id: str | None = None, progress: bool = False, parent: str | None = None
    ) -> RunResult:
        """Run all rounds in a new run folder; the global model moves with them.

        `progress` shows on stdout what `fedpilot run` shows. `parent` is the id or the folder of an
        earlier run: the new run continues after its last round, up to this config's total rounds,
        and ends in the same bits as one run of that length. Raises RunRefused if it would not.

        On Ctrl-C (KeyboardInterrupt) and on errors the folder stays, so that `resume` continues; a
        run that never got its gang leaves none.
        """
        if parent is not None:
            return self._runs.continue_from(parent, run_id, progress=progress)
        if self._is_here:
            self.loaded.check_disk()
            self.loaded.check_copies(len(self.gang.sites))
        return self._runs.begin(run_id, progress=progress)

    def resume(self, run_id: str, *, progress: bool = False) -> RunResult:
        """Continue an interrupted run; it ends in the same bits as one without interruption.

        Raises RunRefused if there is no such run or this config would give other bits.
        """
        return self._runs.resume(run_id, progress=progress)

    def coordinator(self, folder: RunFolder) -> Coordinator:
        """The coordinator of this federation's rounds, which keeps their record in `folder`."""
        return self._runs.coordinator(folder)
