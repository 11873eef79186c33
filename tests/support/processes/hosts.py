"""Several hosts on one machine: network namespaces on one switch, with links that can be cut.

Needs root, iproute2 and iptables; nothing outside the namespaces is changed. Processes that were
started on a host are ended with it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from real_ray import eventually

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed a host's uplink, headers of all layers included."""

    received: int
    sent: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.received - before.received, self.sent - before.sent)


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with an address of its own, on a port of the switch."""

    name: str
    address: str
    namespace: str
    switch: str
    port: str

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: IO[Any] | int = subprocess.DEVNULL,
        err: IO[Any] | int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a command there, in a session of its own."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def cut(self) -> None:
        """Take its cable out."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        """Put its cable back."""
        _ip("-n", self.switch, "link", "set", self.port, "up")

    def refuse_inbound(self) -> None:
        """Drop every new connection from outside, as a site's firewall does."""
        for rule in (("-p", "tcp", "--syn"), ("-p", "udp"), ("-p", "icmp")):
            _run(
                *("ip", "netns", "exec", self.namespace),
                *("iptables", "-A", "INPUT", "-i", "uplink", *rule, "-j", "DROP"),
            )

    def limit(self, megabits: float, *, both_ways: bool = False) -> None:
        """Let no more than that come in per second; `both_ways`: nor go out."""
        rate = f"{round(megabits * 1000)}kbit"
        burst = "128kb" if megabits >= 10 else "16kb"
        shape = ("root", "tbf", "rate", rate, "burst", burst, "latency", "400ms")
        _run("tc", "-n", self.switch, "qdisc", "replace", "dev", self.port, *shape)
        if both_ways:
            _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "uplink", *shape)

    def traffic(self) -> Traffic:
        """Bytes over its uplink so far."""
        shown = _ip("-n", self.namespace, "-s", "-j", "link", "show", "uplink")
        stats = json.loads(shown)[0]["stats64"]
        return Traffic(stats["rx"]["bytes"], stats["tx"]["bytes"])

    def pids(self) -> list[int]:
        """All processes there."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]


@contextlib.contextmanager
def hosts(*names: str, door: bool = False) -> Iterator[dict[str, Host]]:
    """One host per name, all on one switch; all is ended and removed.

    Their addresses are 10.77.0.1 and so on. With a `door` this machine is on the switch as well,
    and the addresses are those of a network that no other process of the tests uses.
    """
    missing = [tool for tool in ("ip", "tc", "iptables") if shutil.which(tool) is None]
    assert os.geteuid() == 0, "network namespaces need root"
    assert not missing, f"not installed: {', '.join(missing)} (apt-get install iproute2 iptables)"
    prefix = f"fp{os.getpid()}x{next(_numbers)}"
    switch = f"{prefix}-switch"
    pid = os.getpid()
    network = f"10.{100 + pid // 250 % 100}.{pid % 250}" if door else "10.77.0"
    with contextlib.ExitStack() as undo:
        _ip("netns", "add", switch)
        undo.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip("-n", switch, "link", "set", "bridge", "up")
        made = {}
        for number, name in enumerate(names, start=1):
            namespace = f"{prefix}-{name}"
            host = Host(name, f"{network}.{number}", namespace, switch, f"port{number}")
            _ip("netns", "add", namespace)
            undo.callback(_ip, "netns", "del", namespace)
            undo.callback(_end_all, host)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip(
                *("-n", namespace, "link", "add", "uplink", "type", "veth"),
                *("peer", "name", host.port, "netns", switch),
            )
            _ip("-n", namespace, "address", "add", f"{host.address}/24", "dev", "uplink")
            _ip("-n", namespace, "link", "set", "uplink", "up")
            _ip("-n", namespace, "route", "add", "default", "dev", "uplink")
            _ip("-n", switch, "link", "set", host.port, "master", "bridge", "up")
            made[name] = host
        if door:
            _ip("link", "add", prefix, "type", "veth", "peer", "name", "door", "netns", switch)
            undo.callback(_ip, "link", "del", prefix)
            _ip("-n", switch, "link", "set", "door", "master", "bridge", "up")
            _ip("address", "add", f"{network}.254/24", "dev", prefix)
            _ip("link", "set", prefix, "up")
        yield made


def _end_all(host: Host) -> None:
    for pid in host.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not host.pids(), 60, f"all processes on {host.name} have ended")


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout
