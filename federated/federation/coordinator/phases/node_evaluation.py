"""NodeEvaluationPhase: has the sites evaluate the own models of a graph's clients after a round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpilot.mediator import Payload, Share

from ....core.population.sampling import Indices
from ....core.population.shares import Mask, held, packed
from ....core.rounds.exchange_costs import COUNTS
from ....core.rounds.node_scores import (
    NodeScores,
    NodesEvaluated,
    node_scores,
    nodes_evaluated,
    samples_evaluated,
)
from ....core.rounds.participation import Rules, least
from ....core.sums.amounts import AnswerRefused
from ...setup.global_model import GlobalModel
from ..gather import Answered, gather, mask_of, parts_of
from ..run_context import RoundQuery, RunContext
from ..site_orders import NODES

RECORD = "nodes"
"""The kind of the record of the clients whose models were evaluated."""


@dataclass(frozen=True, kw_only=True)
class NodesQuery(RoundQuery):
    """Asks sites for the counts of their clients' own models."""

    nodes: Indices
    """Those of all sites, ascending."""
    test_samples: int | None
    """On which each is evaluated; None if each is on its client's own."""

    @property
    def name(self) -> str:
        return f"evaluating the clients' models of round {self.round_number}"

    def check(self, share: Share, answer: Payload) -> None:
        here = self.of(share)
        correct, samples = (_counts(answer, name, len(here)) for name in ("correct", "samples"))
        if not ((correct >= 0) & (correct <= samples)).all():
            raise AnswerRefused("`correct`", "a number of samples", "from 0 to all of them")
        known = self._samples_of(here)
        if known is not None and (samples != known).any():
            raise AnswerRefused("`samples`", "others", "those of its clients, or of the test set")

    def _samples_of(self, clients: Indices) -> Indices | None:
        if self.test_samples is not None:
            return np.full(len(clients), self.test_samples)
        return self.run.membership.samples(clients)

    def covered(self, share: Share, answer: Payload) -> int:
        return self.most(share)

    def most(self, share: Share) -> int:
        return len(self.of(share))

    def bytes_of_counts(self, share: Share) -> int:
        return COUNTS * len(self.of(share))

    def of(self, share: Share) -> Indices:
        """The clients of an order whose models are evaluated."""
        return self.nodes[held(self.nodes, share)]

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        return {}


def _counts(answer: Payload, name: str, clients: int) -> Indices:
    """So many counts in an answer; raises AnswerRefused."""
    found = answer.tensors.get(name)
    if found is None or found.dtype != np.int64 or found.shape != (clients,):
        said = "none" if found is None else f"{found.dtype} {list(found.shape)}"
        raise AnswerRefused(f"`{name}`", said, f"int64 [{clients}]")
    return found


class NodeEvaluationPhase:
    """Evaluates the clients' models of a run's rounds."""

    def __init__(self, run: RunContext) -> None:
        which, seed = NodesEvaluated(run.config.evaluated_nodes), run.config.run.random_seed
        self._run = run
        self._last: tuple[int, str, tuple[Indices, Indices, Indices]] | None = None
        """The counts of the last evaluated round, and its model."""
        self._nodes = nodes_evaluated(which, run.asked, seed)
        self._test_samples: int | None = None
        if run.config.evaluation.where == "coordinator":
            self._test_samples = len(samples_evaluated(which, run.test_samples, seed))

    def evaluate(self, model: GlobalModel) -> NodeScores | None:
        """The scores of the clients' models after the model's round; None if none is asked for.

        A client that sat the round out has no model of it.
        """
        if not len(self._nodes):
            return None
        _, correct, samples = self._counted(model)
        return node_scores(correct, samples)

    def accuracies(self, model: GlobalModel) -> dict[int, float]:
        """By client, of those that are evaluated and have samples."""
        nodes, correct, samples = self._counted(model)
        some = samples > 0
        found = (correct[some] / samples[some]).tolist()
        return dict(zip(nodes[some].tolist(), found, strict=True))

    def _counted(self, model: GlobalModel) -> tuple[Indices, Indices, Indices]:
        """Clients, ascending, and how many of how many samples the model of each got right."""
        if self._last is None or self._last[:2] != (model.round_number, model.digest):
            self._last = model.round_number, model.digest, self._asked(model)
        return self._last[2]

    def _asked(self, model: GlobalModel) -> tuple[Indices, Indices, Indices]:
        run, number = self._run, model.round_number
        recorded = run.counted.read(RECORD, number, model.digest)
        mask = run.counted.mask("counted" if recorded is None else RECORD, number, run.asked)
        there = self._nodes if mask is None else self._nodes[mask[self._nodes]]
        query = self._query(model, there, mask)
        participation, count = run.config.participation, len(there)
        rules = Rules(
            whole=count,
            enough=count,
            least=count if recorded else least(count, participation.quorum),
            wait_s=participation.wait_for_sites_s,
        )
        parts = [each for each in parts_of(run.mediator) if query.most(each.share)]
        clock = time.perf_counter
        answers = gather(query, run.mediator, rules, emit=run.emit, clock=clock, parts=parts)
        if rules.by_clock:
            some = mask_of([each.part for each in answers.all], run.asked)
            run.counted.write(
                RECORD, query, run.asked, answers, packed(there[some[there]], run.asked)
            )
        nothing = np.arange(0)
        nodes = np.concatenate([nothing, *(query.of(each.part.share) for each in answers.all)])
        order = np.argsort(nodes)
        correct, samples = (
            np.concatenate([nothing, *(each.payload.tensors[name] for each in answers.all)])[order]
            for name in ("correct", "samples")
        )
        return nodes[order], correct, samples

    def _query(self, model: GlobalModel, nodes: Indices, mask: Mask | None) -> NodesQuery:
        counted = {} if mask is None else {"counted": packed(np.flatnonzero(mask), len(mask))}
        return NodesQuery(
            kind=NODES,
            model=model,
            round_number=model.round_number,
            header={"journal": str(self._run.folder.journal), **counted},
            variant="nodes",
            run=self._run,
            whole=len(nodes),
            nodes=nodes,
            test_samples=self._test_samples,
        )
