"""A coordinator without torch: it asks what its config says and writes down what it got.

The config is JSON: `orders`, a list of {"site", "key", "numbers" (of a tensor), "verb"};
`events`, how many it tells; `wait_for`, so many sites; `then`, one of "finish", "wait", "fail",
"serve", "no room" and "sites full" (both until there is a file called room). A line of
`seen.jsonl` in the folder of the run for each answer, failure, and change of a site.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from fedpilot.mediator import Payload
from fedpilot.mediator.coordinator.connection import MediatorConnection, RunQuery
from fedpilot.mediator.coordinator.process import end_with_stdin


def main(folder: Path, run: str) -> int:
    place = folder / "runs" / run
    config = json.loads((place / "config.yaml").read_text())
    lock = threading.Lock()

    def see(**fields: Any) -> None:
        with lock, (place / "seen.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")

    end_with_stdin()
    stopped = threading.Event()
    with MediatorConnection(folder, run) as mediator:
        see(what="attached")
        mediator.on_stop(lambda reason: stopped.set())
        mediator.on_site_change(
            lambda each: see(what="site", site=each.name, state=each.state, up=each.link.up)
        )
        mediator.emit({"event": "run_started", "run_id": run})
        if config.get("wait_for"):
            mediator.wait_for_sites(config["wait_for"], timeout_s=60)
        asked = []
        for order in config["orders"]:
            link = mediator.link(order["site"])
            link.listen(lambda told: see(what="happened", kind=told.kind, header=dict(told.header)))
            tensors = {}
            if order.get("numbers"):
                tensors = {"x": np.arange(order["numbers"], dtype=np.float32)}
            payload = Payload(kind="round", header={"of": order["site"]}, tensors=tensors)
            asked.append(
                (
                    order,
                    link.ask(
                        order.get("verb", "work"),
                        payload,
                        key=order["key"],
                        round_number=1,
                        purpose="training",
                    ),
                )
            )
        for order, answer in asked:
            try:
                found = answer.result(60)
                total = float(sum(np.asarray(each).sum() for each in found.tensors.values()))
                see(what="answer", site=order["site"], key=order["key"], sum=total)
            except Exception as error:
                see(
                    what="failure",
                    site=order["site"],
                    key=order["key"],
                    kind=type(error).__name__,
                    text=str(error),
                )
        see(
            what="traffic",
            rows=[
                [f.round_number, f.site, f.direction, f.purpose, n]
                for f, n in mediator.drain_flows()
            ],
        )
        for number in range(config.get("events", 0)):
            mediator.emit({"event": "told", "number": number})
        code = _then(config.get("then", "finish"), mediator, stopped)
        mediator.emit({"event": "run_finished", "status": "finished", "digest": "d" * 64})
    see(what="over")
    return code


def _then(what: str, mediator: MediatorConnection, stopped: threading.Event) -> int:
    match what:
        case "no room":
            return 0 if Path(mediator.blobs.folder.parent / "room").exists() else 75
        case "sites full":
            return 0 if Path(mediator.blobs.folder.parent / "room").exists() else 76
        case "wait":
            return 130 if stopped.wait(60) else 1
        case "fail":
            return 1
        case "serve":
            while not stopped.is_set():
                try:
                    question: RunQuery = mediator.questions.get(timeout=0.05)
                except queue.Empty:
                    continue
                if question.payload.kind == "wrong":
                    question.fail(ValueError("that is wrong"))
                else:
                    question.answer(
                        Payload(
                            kind="told",
                            header=dict(question.payload.header),
                            tensors={
                                n: 2 * np.asarray(t) for n, t in question.payload.tensors.items()
                            },
                        )
                    )
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
