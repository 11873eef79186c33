"""`data_affinity`: clients with similar labels lie at one site, as far as its vnodes allow.

METIS divides the graph of the most similar clients. It is told the similarity of cells of clients,
and not of all pairs, so 100,000 clients take seconds. Then clients move and change places while
that makes a site's clients more alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .cuts.graph_cuts import by_metis, in_order
from .cuts.label_cells import Cells, label_shares
from .cuts.label_sites import FIRST_PASSES, LabelSites
from .records import AssignmentProblem, Division, NotAssignable
from .room import Room
from .shares import members

Indices = npt.NDArray[np.int64]
NO_LABELS = (
    "strategy 'data_affinity' wants the samples of each label that each client has, and they are "
    "not known; choose 'capacity' or 'locality'"
)


def data_affinity(problem: AssignmentProblem) -> Division:
    """Make the clients of a site alike in their labels, each site within 5 % of its part.

    Pinned clients stay, and draw similar ones to their sites. Raises NotAssignable without labels.
    """
    if problem.labels is None:
        raise NotAssignable(NO_LABELS)
    room = Room.of(problem)
    stay = [members(problem.pinned.get(site.name, ())) for site in room.sites]
    labels = LabelSites.of(label_shares(problem.labels), room.free, stay, room.most)
    tried = {way: labels.settled(parts, FIRST_PASSES) for way, parts in _ways(room, labels)}
    found = {way: labels.variation(parts) for way, parts in tried.items()}
    best = min(found, key=lambda way: found[way])
    tried[best] = labels.settled(tried[best])
    found[best] = labels.variation(tried[best])
    if len(found) == 1:
        return room.division(tried[best], "")
    others = ", ".join(f"{way} {found[way]:.1%}" for way in found if way != best)
    reason = (
        f"dividing by {best}, similar labels together, leaves {found[best]:.1%} of the variation "
        f"of labels within sites ({others})"
    )
    return room.division(tried[best], reason)


def _ways(room: Room, labels: LabelSites) -> Iterator[tuple[str, Indices]]:
    yield "their order", in_order(room.goal)
    if np.count_nonzero(room.goal) < 2:
        return
    cells = Cells.cut(labels.shares)
    graph, weights = cells.graph()
    if graph.edges:
        for way, recursive in (("k-way METIS", False), ("recursive METIS", True)):
            parts = by_metis(
                graph, room.goal, recursive=recursive, sizes=cells.sizes, weights=weights
            )
            yield way, parts[cells.of]
    yield "what is around a client", cells.grown(room.goal)[cells.of]
    if labels.stay.any():
        yield "what is at the sites", labels.nearest()
