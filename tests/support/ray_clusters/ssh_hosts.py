"""Hosts with a real sshd each, in network namespaces, and how OpenSSH's client reaches them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpilot.fabric.core.ray_clusters.declaration import (
    HEAD,
    DeclaredRayCluster,
    MachineGroup,
    RayClusterName,
)
from hosts import Host, hosts
from real_ray import eventually

LINES = """\
Port 22
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {user}.pub
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
SetEnv XDG_STATE_HOME={state}
"""
CLIENT = """\
Host {name}
  HostName {address}
  User root
  IdentityFile {user}
  IdentitiesOnly yes
  UserKnownHostsFile {known}
"""


@dataclass(frozen=True, slots=True)
class SshHosts:
    """Hosts by name."""

    hosts: dict[str, Host]
    config: str
    """The file for `ssh -F`."""
    known: Path
    """The file with the hosts' keys."""

    def declare(self, *names: str) -> DeclaredRayCluster:
        """A cluster whose machines may be on these hosts."""
        return DeclaredRayCluster(
            name=RayClusterName("demo"),
            provider="ssh",
            head=MachineGroup(name=HEAD, hosts=names),
            python=sys.executable,
            ssh_config=self.config,
        )

    def on(self, name: str) -> tuple[str, ...]:
        """The begin of a command that runs another on a host."""
        return ("ip", "netns", "exec", self.hosts[name].namespace)


@contextlib.contextmanager
def ssh_hosts(folder: Path, *names: str) -> Iterator[SshHosts]:
    """A host with an sshd for each name; all is ended and removed."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert sshd, "not installed: sshd (apt-get install openssh-server)"
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    user, known, config = folder / "user", folder / "known_hosts", folder / "ssh_config"
    _key(user)
    with hosts(*names, door=True) as made:
        for name, host in made.items():
            own = folder / name
            own.mkdir()
            _key(own / "key")
            public = (own / "key.pub").read_text().split()[:2]
            with known.open("a") as file:
                print(host.address, *public, file=file)
            told = {"address": host.address, "user": user, "known": known, "name": name}
            lines = LINES.format(key=own / "key", state=own / "state", **told)
            (own / "sshd_config").write_text(lines)
            with config.open("a") as file:
                file.write(CLIENT.format(**told))
            command = [sshd, "-D", "-e", "-f", str(own / "sshd_config")]
            with (own / "log").open("wb") as log:
                host.start(command, env={}, cwd=folder, err=log)
            eventually(lambda at=host.address: _listens(at), 60, f"sshd of {name}")
        yield SshHosts(made, str(config), known)


def _key(file: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, timeout=60
    )


def _listens(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, 22), 5):
        return True
    return False
