"""GraphRounds: has the sites train a graph's clients, exchange states, and mix.

Each site trains its clients. Before each mixing step, every site gives the others the models of
the clients whose neighbors are there, or partial sums over them where these are smaller; the
coordinator passes them on by the digest of their blob.
Then each site mixes, and the last time answers with the sum of its models. If a site is lost
meanwhile, the round begins anew once it is back: its clients' models are at that site alone. If the
run's quorum allows it, and the graph stays connected, the clients of an absent site sit the round
out instead.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any

import numpy as np

from fedpilot.mediator import Payload, Share, SiteUnreachable, members
from fedpilot.mediator.errors import AnswerUnreadable

from ....config.schema import Graph
from ....config.telling import DISTRIBUTION
from ....core.population.sampling import Indices
from ....core.population.shares import packed, part_name, told, unpacked
from ....core.rounds.exchange_costs import EXCHANGE_FORMAT
from ....core.rounds.participation import Rules, SiteRefused, TooFewSites
from ....core.rounds.sitting_out import late_told, left_by
from ....core.state import State
from ....core.sums.amounts import AnswerRefused
from ....core.topology.mixing import LEAST_WEIGHT, least_weight
from ....errors import VersionsDiffer
from ....prepare.topology import mixing_of
from ..gather import Answered, Answers, Gather, Part, gather, mask_of, parts_of
from ..run_context import RoundQuery, RunContext
from ..site_orders import GIVING, MIXING, TAKING, TRAINING
from .graph_adapting import AdaptedGraph, GraphAdaptation
from .training_query import TrainingQuery, members_of, partial_of

MORE_EDGES = (
    "the others need more edges among them, or neighbors at one site (`federation.assignment: "
    "locality`)"
)


@dataclass(frozen=True, kw_only=True)
class GraphQuery(RoundQuery):
    """Asks for the training of a graph's clients; the answer names those that are absent."""

    left_by: Indices
    """(population,): the round that left each client's model."""
    graph: AdaptedGraph | None = None
    """The round's graph, if it is not the run's first one."""

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.run.orders.send(self, site, share, graph=self.graph)

    @property
    def name(self) -> str:
        return f"round {self.round_number}"

    def check(self, share: Share, answer: Payload) -> None:
        if answer.kind == "partial":
            lacking = "it answers a round on a graph with a sum before the clients are mixed"
            raise VersionsDiffer(version(DISTRIBUTION), "an earlier one", lacking)
        if answer.kind != "graph_trained":
            raise AnswerRefused("the answer", f"{answer.kind!r:.60}", "that of a round on a graph")
        absent = answer.header.get("absent")
        if not isinstance(absent, list) or any(type(each) is not int for each in absent):
            raise AnswerRefused("`absent`", f"{absent!r:.60}", "a list of clients")
        named = set(absent)
        if len(named) < len(absent) or (named and not named.issubset(members(share).tolist())):
            raise AnswerRefused("`absent`", f"{absent!r:.60}", "clients that it was asked for")
        form = answer.header.get("exchange", 1)
        if type(form) is not int or form < 1:
            raise AnswerRefused("`exchange`", f"{form!r:.60}", "a format of the exchange")

    def order(self, share: Share, prefix: str = "") -> Payload:
        order = super().order(share, prefix)
        late = late_told(self.left_by, share, self.round_number - 1)
        return replace(order, header={**order.header, "late": late}) if late else order

    def covered(self, share: Share, answer: Payload) -> int:
        return members_of(self, share).most

    def most(self, share: Share) -> int:
        return members_of(self, share).most

    def review(self, answered: Sequence[Answered]) -> dict[str, Exception]:
        return {}


class GraphRounds:
    """The rounds of one attempt at a run on a graph."""

    def __init__(self, run: RunContext, adaptation: GraphAdaptation | None) -> None:
        """`adaptation` gives later rounds other graphs."""
        self._run = run
        self._adaptation = adaptation
        self._left_by: tuple[int, Indices] = 0, np.empty(0, np.int64)
        """A round, and the last one before it in which each client counted."""
        self._steps = (run.config.graph or Graph()).mixing_steps
        # Another coordinator does not know how far the exchange came: it has all trained anew.
        coordinator = secrets.token_hex(4)
        self._attempts = (f"{coordinator}.{number}" for number in itertools.count())

    def answers(self, sums: TrainingQuery, rules: Rules) -> Answers:
        """The sites' sums of their clients' models after a round; `sums` asks for them.

        If its header names clients that counted when the round ran before, these are asked. Raises
        as `gather` does.
        """
        run, graph = self._run, None
        if self._adaptation is not None:
            graph = self._adaptation.graph_after(sums.model)
        while True:
            attempt = next(self._attempts)
            header = {**sums.header, "attempt": attempt}
            if graph is not None:
                header["graph"] = graph.digest
            query = GraphQuery(
                kind=TRAINING,
                model=sums.model,
                round_number=sums.round_number,
                header=header,
                variant=f"{sums.variant}.{attempt}",
                run=run,
                whole=sums.whole,
                left_by=self._last_rounds(sums.round_number, sums.whole),
                graph=graph,
            )
            trained = self._trained(query, rules)
            parts = _parts(trained)
            absent = sorted(itertools.chain(*(a.payload.header["absent"] for a in trained.all)))
            header = {**header, **self._counted(query, trained), "absent": absent}
            mix = replace(sums, header=header, variant=query.variant)
            found: list[Answered] = []
            try:
                for step in range(self._steps):
                    self._exchange(replace(query, header=header), trained, step)
                    if found := self._mix(mix, parts, step):
                        break
                return replace(trained, all=found)
            except SiteUnreachable as error:
                number = sums.round_number
                run.mediator.membership.give_up(error.site, error, round_number=number)
                query.site_changed()
            except _Refused as error:
                sums.refused(error.site, error.cause)
                number, reason = sums.round_number, str(error.cause)
                run.mediator.membership.distrust(error.site, reason, round_number=number)
                query.site_changed()

    # -- who takes part ---------------------------------------------------------------------------

    def _trained(self, query: GraphQuery, rules: Rules) -> Answers:
        """Have all clients trained, or those of the sites that are there, if they suffice."""
        run, clock = self._run, time.perf_counter
        counted = query.header.get("counted")
        may = np.ones(query.whole, bool) if counted is None else unpacked(counted, query.whole)
        parts = parts_of(run.mediator)
        parts = [each for each in parts if (mask_of([each], query.whole) & may).any()]
        trained = gather(query, run.mediator, rules, emit=run.emit, clock=clock, parts=parts)
        if not trained.missing or not (apart := self._apart(query, trained)):
            return trained
        waiting = replace(rules, enough=rules.whole, least=rules.whole)
        try:
            more = Gather(query, run.mediator, waiting, clock).answers(trained.missing)
        except TooFewSites as error:
            raise TooFewSites(error.what, f"{error.lacking}; {apart}", error.waited_s) from error
        except SiteRefused as error:
            raise SiteRefused(error.what, f"{error.lacking}; {apart}", MORE_EDGES) from error
        return replace(trained, all=[*trained.all, *more.all], missing=(), reason="")

    def _apart(self, query: GraphQuery, trained: Answers) -> str:
        """What becomes of the graph without the missing clients; empty if the others can go on.

        A graph that changes connects its clients over several rounds, and counts as whole.
        """
        run, graphs = self._run, self._run.graphs
        if graphs is None or graphs.changes:
            return ""
        from ....core.topology.connectivity import components, in_words
        from ....core.topology.graphs import Topology

        if query.graph is not None:
            found = query.graph.graph
            graphs = Topology.static(found.edges, found.weights)
        there = mask_of(_parts(trained), query.whole)
        name = run.partition.client_id
        found_parts = components(graphs.of_round(1).among(np.flatnonzero(there)))
        if len(found_parts) > 1:
            clients = np.flatnonzero(there)
            names = [[name(int(clients[node])) for node in part] for part in found_parts]
            apart = f"{len(found_parts)} parts that never meet: {in_words(names)}"
            return f"without its clients the graph has {apart}"
        if run.config.federation.pushes:
            mixing = mixing_of(run.config, graphs, 1).without(np.flatnonzero(~there))
            node, weight = least_weight(mixing)
            if weight < LEAST_WEIGHT:
                return (
                    f"without its clients next to nothing of all push-sum weight is {name(node)}'s"
                )
        return ""

    def _counted(self, query: GraphQuery, trained: Answers) -> dict[str, str]:
        """For the header of orders: the clients that count, if these are not all."""
        mask = mask_of(_parts(trained), query.whole)
        if "counted" in query.header or mask.all():
            return {}
        return {"counted": packed(np.flatnonzero(mask), query.whole)}

    def _last_rounds(self, number: int, population: int) -> Indices:
        """The last round before this one in which each client counted, (population,)."""
        if self._left_by[0] != number:
            read = self._run.counted.mask
            found = left_by(number, population, lambda n: read("counted", n, population))
            self._left_by = number, found
        return self._left_by[1]

    # -- one mixing step --------------------------------------------------------------------------

    def _exchange(self, query: GraphQuery, trained: Answers, step: int) -> None:
        """Pass on what each site's clients give to their neighbors at other sites."""
        parts, shares = _parts(trained), {each.part.site: each.part.share for each in trained.all}
        counted, absent = query.header.get("counted"), query.header["absent"]
        there = np.ones(query.whole, bool) if counted is None else unpacked(counted, query.whole)
        there[absent] = False
        older = _older(trained)
        number = query.round_number
        self._run.orders.reserve_exchange(number, shares, np.flatnonzero(~there), older)

        def form(one: Part, other: Part) -> dict[str, Any]:
            """Of what crosses between two sites."""
            return {} if {one.site, other.site} & older else {"exchange": EXCHANGE_FORMAT}

        arrived: SimpleQueue[tuple[Part, Part, Future[Payload]]] = SimpleQueue()

        def arriving(one: Part, other: Part) -> Callable[[Future[Payload]], None]:
            return lambda states: arrived.put((one, other, states))

        pairs = list(itertools.permutations(parts, 2))
        for one, other in pairs:
            about, to = form(one, other), told(other.share)
            ask = self._ask(query, GIVING, one, step, about=other, to=to, **about)
            ask.add_done_callback(arriving(one, other))
        taken = []
        for _ in pairs:  # what a fast link brings goes on while a slow one still gives
            one, other, states = arrived.get()
            tensors = _answer(one.site, states).tensors
            if tensors:
                more = {"of": told(one.share), **form(one, other)}
                ask = self._ask(query, TAKING, other, step, tensors, about=one, **more)
                taken.append((one, other, ask))
        for one, other, problem in taken:
            if said := _answer(other.site, problem).header.get("problem"):
                raise _Refused(
                    one.site, AnswerRefused("its models", f"{said!r:.200}", "as they should be")
                )

    def _mix(self, sums: TrainingQuery, parts: Sequence[Part], step: int) -> list[Answered]:
        """Mix once; returns the sites' sums after the last step.

        After an earlier step it returns the sums that left their range, if there are any.
        """
        asked = [(part, self._ask(sums, MIXING, part, step)) for part in parts]
        found = []
        for part, mixed in asked:
            answer = _answer(part.site, mixed)
            if answer.kind == "mixed" and step + 1 < self._steps:
                continue
            if answer.kind == "lacking":
                raise _lacking(part, parts, answer)
            try:
                sums.check(part.share, answer)
            except AnswerRefused as error:
                raise _Refused(part.site, error) from error
            if step + 1 < self._steps and not partial_of(answer).overflowed:
                early = AnswerRefused("its sum", "before the last step", "only after it")
                raise _Refused(part.site, early)
            found.append(Answered(part, answer, sums.most(part.share)))
        for site, problem in sums.review(found).items():
            raise _Refused(site, problem)
        return found

    def _ask(
        self,
        form: RoundQuery,
        kind: str,
        part: Part,
        step: int,
        tensors: State | None = None,
        *,
        about: Part | None = None,
        **more: Any,
    ) -> Future[Payload]:
        """Send an order about a step, and about what another part gets or gives."""
        name = "" if about is None else f"/{part_name(about.share)}"
        header = {**form.header, "step": step, **more}
        order = replace(form, kind=kind, header=header, variant=f"{form.variant}/{step}{name}")
        return self._run.orders.pass_on(order, part.site, part.share, tensors or {})


def _parts(answers: Answers) -> list[Part]:
    return [each.part for each in answers.all]


def _older(answers: Answers) -> set[str]:
    """The sites that know no partial sums."""
    return {
        each.part.site
        for each in answers.all
        if each.payload.header.get("exchange", 1) < EXCHANGE_FORMAT
    }


class _Refused(Exception):
    """A site's answer that cannot count."""

    def __init__(self, site: str, cause: Exception) -> None:
        super().__init__(site, cause)
        self.site, self.cause = site, cause


def _lacking(part: Part, parts: Sequence[Part], answer: Payload) -> _Refused:
    """A site lacks the model of another one's client, which that one should have given."""
    client = answer.header.get("client")
    owners = [each for each in parts if any(client in clients for clients in each.share)]
    if type(client) is not int or not owners or part in owners:
        return _Refused(part.site, AnswerRefused("`client`", f"{client!r:.60}", "one elsewhere"))
    found = f"none of client {client} for site {part.site}"
    return _Refused(owners[0].site, AnswerRefused("its models", found, "those of all neighbors"))


def _answer(site: str, asked: Future[Payload]) -> Payload:
    try:
        return asked.result()
    except AnswerUnreadable as error:
        raise _Refused(site, error) from error
