"""Verifies two runs: where they part, and which clients and tensors of that round differ.

Both agree on the model before that round. It comes from a checkpoint or is trained again, and then
the round's clients are trained one by one under each run's config, unless the runs recorded them.
Two runs of one identity would train alike: there the repetition shows which one this machine gives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...config import differences
from ...core.proof.client_differences import ClientComparison, ClientFacts, compare_clients
from ...core.proof.run_check import environment_differences
from ...core.proof.run_comparison import Comparison, compare
from ...core.proof.state_differences import TensorDifference, state_differences
from ...core.state import State, digest, nbytes
from ...engine.tensor_files import read_tensors, write_tensors
from ...errors import RunRefused
from ..clients.virtual_node import TrainResult
from ..federation import Federation
from ..setup.global_model import GlobalModel
from .one_run import Replay, facts_of
from .reading import Reading
from .stage import Departed, ReplayStart, Stage, Tools, federation_of, staged, starts

SPILLED_BYTES = 2 << 30
"""Bytes on disk for clients' models, to measure differences; the rest have fingerprints only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Localised:
    """Findings about the round at which two runs part."""

    round_number: int
    sides: tuple[str, str]
    """The two sides of the comparison, in words."""
    clients: ClientComparison | None = None
    tensors: tuple[TensorDifference, ...] | None = None
    """Where the models after that round differ; None if one of them is not available."""
    reproduced: Mapping[str, bool | None] = field(default_factory=dict)
    """By run: whether the repeated round has the recorded model; None: not tried."""
    notes: tuple[str, ...] = ()
    """What could not be done, and why, and other remarks."""


def compare_runs(first: Reading, second: Reading) -> Comparison:
    """Compare two records without training."""
    configs = first.config, second.config
    known = configs[0] is not None and configs[1] is not None
    keys = differences(configs[0], configs[1]) if known else ()  # type: ignore[arg-type]
    return compare(first.record, second.record, keys)


@dataclass(slots=True)
class _Side:
    run: Reading
    federation: Federation | None = None
    recorded: dict[str, ClientFacts] = field(default_factory=dict)
    after: State | None = None
    """The run's model after that round, as trained again or from its folder."""
    reproduced: bool | None = None


def localise(
    first: Reading,
    second: Reading,
    comparison: Comparison,
    how: Replay,
    measured: int,
    tools: Tools,
) -> Localised:
    """Find the clients and tensors that differ in the round at which two runs part.

    Differences of `measured` clients are measured where training gives both models.
    """
    sides, number = (_Side(first), _Side(second)), comparison.round_number or 0
    search = _Search(sides, number, how, measured, tools)
    if number == 0:
        return search.initial()
    return search.identical() if comparison.same_identity else search.different()


@dataclass(slots=True)
class _Search:
    sides: tuple[_Side, _Side]
    number: int
    how: Replay
    measured: int
    tools: Tools
    notes: list[str] = field(default_factory=list)
    before: GlobalModel | None = None
    """The model before the round, once available."""

    def __post_init__(self) -> None:
        for side in self.sides if self.number else ():
            side.after = side.run.state_of_round(self.number)
            try:
                side.recorded = side.run.clients(self.number)
            except RunRefused as error:
                self.notes.append(str(error))
            self._count_recorded(side)

    def _count_recorded(self, side: _Side) -> None:
        """Add a note if an interruption kept the run from recording all clients of the round."""
        row = side.run.record.row(self.number)
        of = row.get("clients", 0) + row.get("refused", 0)
        if 0 < len(side.recorded) < of:
            name, count = side.run.name, len(side.recorded)
            self.notes.append(f"{name} recorded {count} of the {of} clients of this round")

    # -- the three cases ----------------------------------------------------------------------

    def initial(self) -> Localised:
        """The runs part before the first round: their initial models differ."""
        for side in self.sides:
            if self._opened(side) and side.federation is not None:
                made = side.federation.state
                side.reproduced = digest(made) == side.run.record.digests()[0]
                side.after = made if side.reproduced else None
        return self._found(None)

    def identical(self) -> Localised:
        """The runs part although nothing that decides differs: find which one repeats here."""
        first, second = self.sides
        clients, sides = None, self._names()
        if first.recorded and second.recorded:
            clients = compare_clients(first.recorded, second.recorded)
        if self.how is not Replay.NONE and self._opened(first):
            try:
                with self._before_the_round(first) as stage:
                    self._step(stage, *self.sides)
                    told = [s for s in self.sides if s.recorded and not s.reproduced]
                    if told and clients is None and self._share_a_model():
                        here = {r.client_id: facts_of(r) for r in stage.clients(stage.cohort())}
                        clients = compare_clients(told[0].recorded, here)
                        sides = (f"{told[0].run.name} (as recorded)", "trained here")
            except Departed as error:
                first.reproduced = second.reproduced = False
                self.notes.append(str(error))
        if clients is None:
            silent = " and ".join(side.run.name for side in self.sides if not side.recorded)
            self.notes.append(
                f"which clients differ is not known: {silent} recorded no digests of clients "
                "(`outputs.client_digests: true` does)"
            )
        return self._found(clients, sides)

    def _share_a_model(self) -> bool:
        """Whether the clients of both runs train from the run's model."""
        configs = [side.run.config for side in self.sides]
        return all(each is None or each.clients_share_a_model for each in configs)

    def different(self) -> Localised:
        """The runs part because something that decides differs."""
        first, second = self.sides
        if first.recorded and second.recorded:
            return self._found(compare_clients(first.recorded, second.recorded))
        if self.how is Replay.NONE:
            self.notes.append("which clients differ is not known: nothing was trained again")
            return self._found(None)
        if not self._share_a_model():
            self.notes.append(
                "which clients differ is not known: those of groups (`topology: hierarchical`) "
                "train from their group's model, those of a graph from their own, and are not "
                "trained one by one"
            )
            return self._found(None)
        opened = [self._opened(side) for side in self.sides]
        if not all(opened):
            return self._found(None)
        with tempfile.TemporaryDirectory(prefix="fedpilot-verify-") as folder:
            return self._found(self._trained(_Spill(Path(folder))))

    def _trained(self, spill: _Spill) -> ClientComparison | None:
        """Train the clients of both cohorts under each config, unless they were recorded."""
        first, second = self.sides
        made = [side.federation for side in self.sides if side.federation is not None]
        cohorts = [federation.loaded.cohort(self.number) for federation in made]
        common = [client for client in cohorts[0] if client in set(cohorts[1])]
        alone = [{c: ClientFacts(samples=None, fingerprints={}) for c in each} for each in cohorts]
        measured: dict[str, tuple[TensorDifference, ...]] = {}
        ours, theirs = dict(first.recorded), dict(second.recorded)

        def one(result: TrainResult) -> None:
            ours[result.client_id] = facts_of(result)
            spill.keep(result.client_id, result.state)

        def other(result: TrainResult) -> None:
            client = result.client_id
            theirs[client] = facts_of(result)
            if theirs[client] != ours.get(client) and len(measured) < self.measured:
                kept = spill.get(client)
                if kept is not None:
                    measured[client] = state_differences(kept, result.state)

        try:
            self._train(first, common, one)
            self._train(second, common, other)
        except Departed as error:
            next(s for s in self.sides if s.run.name == error.name).reproduced = False
            self.notes.append(f"{error}, so that round {self.number} cannot be looked into")
            return None
        for side in self.sides:
            if side.reproduced is False:
                self.notes.append(
                    f"the clients of {side.run.name} are as trained here, not as they were trained"
                )
        found = compare_clients(
            ours if first.recorded else alone[0] | ours,
            theirs if second.recorded else alone[1] | theirs,
        )
        differing = tuple(
            replace(each, tensors=measured.get(each.client, each.tensors))
            for each in found.differing
        )
        return replace(found, differing=differing)

    def _train(
        self, side: _Side, clients: Sequence[str], each: Callable[[TrainResult], None]
    ) -> None:
        """Train the round as a whole, then these clients, under a run's config, unless recorded."""
        if side.recorded:
            return
        with self._before_the_round(side) as stage:
            self._step(stage, side)
            for result in stage.clients(clients):
                each(result)

    # -- what they share ----------------------------------------------------------------------

    def _opened(self, side: _Side) -> bool:
        """Make a run's federation; return False if code or data have changed."""
        federation, standing = federation_of(side.run, self.tools.make)
        if standing.reproducible:
            side.federation = federation
            return True
        reasons = "; ".join(standing.reasons)
        self.notes.append(f"{side.run.name} cannot be trained again here: {reasons}")
        return False

    @contextmanager
    def _before_the_round(self, side: _Side) -> Iterator[Stage]:
        """A run's federation, started, at the model that both had before the round."""
        assert side.federation is not None
        known, target = self.before, self.number - 1
        start = self._start(side, target)
        if known is not None and not known.memory and side.run.is_stateless:
            start = ReplayStart(round_number=0)
        else:
            known = None
        with staged(side.run, side.federation, start, self.tools) as stage:
            changed = environment_differences(side.run.environment, stage.environment)
            for name, (then, now) in changed.items():
                self.notes.append(f"{side.run.name} was trained with {name} {then}, here {now}")
            if known is not None:
                stage.stand_at(known)
            stage.replay(side.run, target)
            self.before = stage.model
            yield stage

    def _start(self, side: _Side, target: int) -> ReplayStart:
        other = next(each for each in self.sides if each is not side)
        found = [s for s in starts(side.run, other.run) if s.round_number <= target]
        return found[0] if self.how is Replay.ALL else found[-1]

    def _step(self, stage: Stage, *sides: _Side) -> None:
        """Train the round as a whole, see which runs had this model, and go back before it."""
        before = stage.model
        _, model = stage.next_round(self.number)
        stage.stand_at(before)
        for side in sides:
            side.reproduced = side.run.record.digests().get(self.number) == model.digest
            side.after = model.state if side.reproduced else side.after

    def _names(self) -> tuple[str, str]:
        one, other = (f"{s.run.name}{' (as recorded)' * bool(s.recorded)}" for s in self.sides)
        return one, other

    def _found(
        self, clients: ClientComparison | None, sides: tuple[str, str] | None = None
    ) -> Localised:
        first, second = self.sides
        tensors = None
        if first.after is not None and second.after is not None:
            tensors = state_differences(first.after, second.after)
        return Localised(
            round_number=self.number,
            sides=sides or self._names(),
            clients=clients,
            tensors=tensors,
            reproduced={side.run.name: side.reproduced for side in self.sides},
            notes=tuple(dict.fromkeys(self.notes)),
        )


class _Spill:
    """Clients' models on disk, as many as fit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = SPILLED_BYTES
        self._files: dict[str, Path] = {}

    def keep(self, client: str, state: State) -> None:
        self._left -= nbytes(state.values())
        if self._left >= 0:
            path = self._files[client] = self._folder / f"{len(self._files)}.safetensors"
            write_tensors(path, state)

    def get(self, client: str) -> State | None:
        """A client's model, if it was kept."""
        path = self._files.get(client)
        return None if path is None else read_tensors(path)[1]
