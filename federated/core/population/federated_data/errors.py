"""What can be wrong with data that lies at sites.

UnionError
+-- BadDeclaration   what a site discloses of a data set cannot be used
+-- NotHere          the requested samples are at a site
"""

from __future__ import annotations

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.federated.errors import FederatedError


class UnionError(FederatedError):
    """What sites declare cannot be trained on together."""

    exits_with = BAD_INPUT


class BadDeclaration(UnionError):
    """What a site discloses of a data set cannot be used."""

    def __init__(self, site: str, dataset: str, problem: str) -> None:
        super().__init__(site, dataset, problem)
        self.site, self.dataset, self.problem = site, dataset, problem

    def __str__(self) -> str:
        return f"site {self.site} declares data set {self.dataset} wrongly: {self.problem}"


class NotHere(UnionError):
    """The requested samples are at a site."""

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id)
        self.client_id = client_id

    def __str__(self) -> str:
        return f"the samples of client {self.client_id} are at its site and cannot be read here"
