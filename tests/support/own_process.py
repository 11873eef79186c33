"""Test files that change their process for good run in one of their own.

A file whose tests install hooks into Ray or `threading` has the mark `own_process`. Its tests then
run in a child pytest: the parent names one test after the other, and passes on the reports that
come back. The child ends with the last test of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pytest

CHANNEL = "FEDPILOT_TESTS_CHANNEL"
"""Names, in a child, the descriptors that it reads orders from and writes reports to."""

ENDING_S = 120.0
"""How long a child may take to end its fixtures."""

Document = dict[str, Any]


class Child:
    """A pytest process that runs tests of one file, as it is told."""

    def __init__(self, path: str, folder: str) -> None:
        self.path = path
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        theirs, orders = os.pipe()
        reports, answers = os.pipe()
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_XDIST_WORKER"}
        environment[CHANNEL] = f"{theirs},{answers}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        self._process = subprocess.Popen(
            [*command, "-m", "soak or not soak", path],
            cwd=folder,
            env=environment,
            pass_fds=(theirs, answers),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)
        os.close(answers)
        self._orders, self._reports = os.fdopen(orders, "w"), os.fdopen(reports)

    def run(self, item: str, following: str | None) -> Iterator[Document]:
        """Have a test run; its reports. EOFError if the child ended."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([item, following]), file=self._orders, flush=True)
        for line in self._reports:
            report = json.loads(line)
            if report is None:
                return
            yield report
        status = self._process.wait()
        self._said.seek(0)
        raise EOFError(f"the tests' own process ended with {status}:\n{self._said.read()}")

    def close(self) -> None:
        """Let the child end."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reports.close()
        self._said.close()


class Parent:
    """Runs marked files in children."""

    def __init__(self) -> None:
        self._child: Child | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The child sees to its tests' deadlines."""
        for item in items:
            if item.get_closest_marker("own_process"):
                item.add_marker(pytest.mark.timeout(0), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not item.get_closest_marker("own_process"):
            return None
        path = str(item.path)
        if self._child is None:
            self._child = Child(path, str(item.config.rootpath))
        stays = nextitem is not None and str(nextitem.path) == path
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem.nodeid if stays and nextitem else None):
            hook.pytest_runtest_logreport(report=report)
        self._leave(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not stays:
            self._close()
        return True

    def _leave(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End what the test before has kept set up for this one and the next does not share."""
        state = item.session._setupstate
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)

    def _reports(self, item: pytest.Item, following: str | None) -> Iterator[pytest.TestReport]:
        assert self._child is not None
        config = item.config
        try:
            for report in self._child.run(item.nodeid, following):
                yield config.hook.pytest_report_from_serializable(config=config, data=report)
        except EOFError as error:
            self._close()
            yield pytest.TestReport(
                item.nodeid, item.location, {}, "failed", str(error), when="call"
            )

    def pytest_unconfigure(self) -> None:
        self._close()

    def _close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


class Runner:
    """What a child does in the place of running all that it has collected."""

    def __init__(self, channel: str) -> None:
        orders, reports = (int(each) for each in channel.split(","))
        for descriptor in (orders, reports):
            os.set_inheritable(descriptor, False)  # what tests start must not hold the parent up
        self._orders: IO[str] = os.fdopen(orders)
        self._reports: IO[str] = os.fdopen(reports, "w")
        self._config: pytest.Config | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._config = session.config
        items = {item.nodeid: item for item in session.items}
        for line in self._orders:
            name, following = json.loads(line)
            session.config.hook.pytest_runtest_protocol(
                item=items[name], nextitem=items.get(following)
            )
            self._tell(None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._config is not None
        hook = self._config.hook
        self._tell(hook.pytest_report_to_serializable(config=self._config, report=report))

    def _tell(self, report: Document | None) -> None:
        print(json.dumps(report), file=self._reports, flush=True)


def register(config: pytest.Config) -> None:
    """Make this pytest a child, if it was started as one, or else a parent of some."""
    channel = os.environ.pop(CHANNEL, None)
    config.pluginmanager.register(Runner(channel) if channel else Parent(), "own_process")
