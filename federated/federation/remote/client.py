"""Connection: the federation of a mediator's sites, as an object in Python.

    with fedpilot.connect("hospitals") as connection:
        with connection.federation("my.yaml") as federation:
            print(federation["client_7"].train().loss)

A VirtualNode has the same class as a local one. Its orders travel to the run's coordinator at the
mediator, and from there to the client's site.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from fedpilot.mediator import Payload
from fedpilot.mediator.cli.access import access_of
from fedpilot.mediator.client.client import ENDED, Document, MediatorClient
from fedpilot.mediator.errors import QuestionFailed, RequestRefused

from ...config import read_config, to_yaml
from ...config.schema import RunConfig
from ...core.population.partitions.partition import UnknownClient
from ...core.state import State
from ...errors import FederatedError
from ...prepare.run_ask import run_ask
from ...prepare.user_code.user_code import code_to_send
from ...prepare.user_code.user_sources import import_paths
from ..clients.virtual_node import VirtualNode
from ..run_folder.folder import check_run_id, new_run_id

AT_ONCE = 16
"""Open questions per federation."""
START_S = 300.0
"""Seconds that a run's coordinator may take until it answers."""
LOOK_S = 0.5
PAGE = 1_000
"""Clients per listing answer."""


def connect(
    profile: str | None = None, *, mediator: str | None = None, credentials: str | None = None
) -> Connection:
    """Connect to a mediator: by a profile's name, by address, or as the environment says.

    Raises ProfileError where no mediator is named, and the errors of `MediatorClient`.
    """
    return Connection(access_of(mediator, credentials, profile).open())


class Connection:
    """A user's connection to a mediator."""

    def __init__(self, client: MediatorClient) -> None:
        self.client = client

    def federation(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path,
        *,
        overrides: Sequence[str] = (),
        run_id: str | None = None,
    ) -> RemoteFederation:
        """Have the mediator make a federation that serves its clients until you close it.

        Your own modules that the config names are sent along, from the working folder, the config's
        folder and other folders on Python's path, except installed ones. Raises ConfigError before
        anything is sent, also for a model that only this process knows. The same `run_id` gives the
        same federation again.
        """
        read, name, _ = read_config(config, overrides)
        run = check_run_id(run_id or new_run_id(read.run.name or name))
        code = code_to_send(read, import_paths(config)).archive
        text, ask = to_yaml(read), run_ask(read)
        self.client.submit(run, text, name=name, interactive=True, code=code, ask=ask)
        return RemoteFederation(self.client, run, owned=True)

    def run(self, run_id: str) -> RemoteFederation:
        """The clients of a current run at the mediator; closing it leaves the run alone.

        Only the run's owner and admins may ask them; others get NotPermitted.
        """
        self.client.show_run(run_id)
        return RemoteFederation(self.client, run_id)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteFederation:
    """Clients by id of a run at a mediator; closing this stops an `owned` run."""

    round = 0
    """The coordinator knows the round; a client here trains the next one."""

    def __init__(self, client: MediatorClient, run_id: str, *, owned: bool = False) -> None:
        self.run_id = run_id
        self._client = client
        self._owned = owned
        self._ids: dict[int, str] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"{run_id}-asks")
        self._closed = False

    def __getitem__(self, client_id: str) -> VirtualNode:
        """A client; UnknownClient (a KeyError) if there is none. Waits until the run is up."""
        index = int(self._shown(client_id)["index"])
        self._ids[index] = client_id
        return VirtualNode(self, index)

    @property
    def topology(self) -> None:
        """Not known here."""
        return None

    def __len__(self) -> int:
        """The population."""
        return int(self.list_nodes(count=0)["total"])

    def __iter__(self) -> Iterator[str]:
        """The clients' ids."""
        first = 0
        while nodes := self.list_nodes(first=first, count=PAGE)["nodes"]:
            yield from (str(node["id"]) for node in nodes)
            first += len(nodes)

    def list_nodes(self, *, first: int = 0, count: int = 100, site: str = "") -> Document:
        """List VirtualNodes of one site or of all: `total`, and `nodes` with their places."""
        header = {"first": first, "count": count, "site": site}
        return self._asked(Payload(kind="node.list", header=header)).header

    def close(self) -> None:
        """Send no more, and stop an owned run; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._owned:
            with suppress(RequestRefused):  # it has ended by itself
                self._client.stop_run(self.run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for VirtualNodes ---------------------------------------------------------------------

    def client_id(self, index: int) -> str:
        """The id of a client that was looked up before."""
        return self._ids[index]

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a client's order to the run's coordinator."""
        if self._closed:
            raise FederatedError("the federation is closed")
        header = {**order.header, "client": self._ids[index]}
        return self._threads.submit(self._asked, replace(order, header=header))

    def show(self, index: int) -> Mapping[str, Any]:
        """The state of a client's node; starts nothing."""
        return self._shown(self._ids[index])

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The caller's model with its digest; empty for the global model at the mediator."""
        from ...core.state import digest

        return ("", {}) if model is None else (digest(model), model)

    def explain_assignment(self, index: int) -> Mapping[str, Any]:
        """Explain why a client belongs to its site, and what would move it."""
        header = {"client": self._ids[index], "explain": True}
        shown = self._asked(Payload(kind="node.show", header=header)).header
        if isinstance(found := shown.get("explained"), Mapping):
            return found
        # The coordinator is of an earlier version.
        return {"sentences": [f"site: {shown.get('assignment', 'not known')}"]}

    def _shown(self, client_id: str) -> Mapping[str, Any]:
        return self._asked(Payload(kind="node.show", header={"client": client_id})).header

    def _asked(self, question: Payload) -> Payload:
        """Ask the run, which may have to start first. Raises UnknownClient, QuestionFailed."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self._client.ask_run(self.run_id, question)
            except QuestionFailed as error:
                if error.kind.rpartition(":")[2] == UnknownClient.__name__:
                    client_id = str(question.header["client"])
                    raise UnknownClient(client_id, f"those of run {self.run_id}") from error
                raise
            except RequestRefused:
                status = self._client.show_run(self.run_id).get("status")
                if status in ENDED or status == "stopping" or time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)
