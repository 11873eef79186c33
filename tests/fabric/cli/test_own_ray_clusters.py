"""Commands with a Ray cluster of their own: `raycluster run` and `job submit --ray-cluster`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import Result

from command_line import invoke
from fake_jobs import FakeJobs, invoke as invoke_job
from fake_site import FakeSite
from fedpilot.fabric.jobs.job_log import READY
from fedpilot.fabric.ray_clusters import own_cluster
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.spec.ray_cluster.document import RayClusterDocument

DEMO = """
metadata: {name: demo}
spec: {headGroupSpec: {rayStartParams: {num-cpus: "1"}}}
"""
VARIABLES = {
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": "/folder/token",
}


class FakeOwn:
    """A Ray cluster of fake machines."""

    site: FakeSite
    begun = 0
    ended = 0

    def __init__(self, declared: RayClusterDocument) -> None:
        self.store, self._declared = self.site.store, declared

    def __enter__(self) -> FakeOwn:
        type(self).begun += 1
        name = self._declared.declared.name
        self.stored = self.store.apply(
            name, self._declared.document, saw=UNDECLARED, by="ann", at=time.time()
        )
        return self

    @property
    def environment(self) -> Mapping[str, str]:
        return VARIABLES

    def __exit__(self, *_: object) -> None:
        type(self).ended += 1
        found = self.stored
        self.store.delete(found.name, saw=found.revision, by="ann", at=time.time())
        while self.store.declarations():
            time.sleep(0.01)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeOwn]]:
    site = FakeSite(tmp_path)
    found = type("Own", (FakeOwn,), {"site": site})
    monkeypatch.setattr(own_cluster, "OwnRayCluster", found)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with site.managed():
        yield found
    site.store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "demo.yaml"
    found.write_text(DEMO)
    return found


def run(file: Path, *arguments: str) -> Result:
    return invoke("raycluster", "run", str(file), *arguments)


def test_a_command_has_the_variables_of_its_cluster(
    own: type[FakeOwn], file: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    script = f'echo "$RAY_ADDRESS $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH" > {said}; exit 7'
    done = run(file, "--", "sh", "-c", script)
    assert done.exit_code == 7, done.output
    assert said.read_text().split() == [*VARIABLES.values()]
    assert (own.begun, own.ended) == (1, 1)


def test_a_command_that_fails_runs_again_with_a_new_cluster_so_often(
    own: type[FakeOwn], file: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    done = run(file, "--backoff-limit", "2", "--", "sh", "-c", f"echo run >> {said}; exit 3")
    assert done.exit_code == 3
    assert done.stderr.count("runs again with a new cluster") == 2
    assert said.read_text().split() == ["run"] * 3
    assert (own.begun, own.ended) == (3, 3)
    assert run(file, "--backoff-limit", "2", "--", "true").exit_code == 0
    assert own.begun == 4


def test_a_command_that_takes_too_long_is_ended_and_its_cluster_with_it(
    own: type[FakeOwn], file: Path
) -> None:
    done = run(file, "--active-deadline", "0.2", "--backoff-limit", "5", "--", "sleep", "600")
    assert done.exit_code == 1
    assert "sleep has run longer than 0.2 s, and was ended" in done.stderr
    assert (own.begun, own.ended) == (1, 1)


def test_a_bad_file_starts_nothing(own: type[FakeOwn], file: Path) -> None:
    file.write_text(DEMO.replace("spec", "spek"))
    assert run(file, "--", "true").exit_code == 2
    assert run(file).exit_code == 2
    assert own.begun == 0


def test_a_job_runs_on_the_cluster_of_its_file(own: type[FakeOwn], file: Path) -> None:
    jobs = FakeJobs(log=[f"fedpilot: virtual cluster x is active; {READY}\nepoch 1\n"])
    done = invoke_job(jobs, "submit", "--ray-cluster", str(file), "--", "python", "a.py")
    assert (done.exit_code, done.stdout) == (0, "epoch 1\n"), done.stderr
    assert len(jobs.submitted) == 1
    assert (own.begun, own.ended) == (1, 1)


@pytest.mark.parametrize(
    "option", [["--no-wait"], ["--in", "speech"], ["--address", "a:1"], ["--auth-mode", "token"]]
)
def test_a_job_with_its_own_cluster_has_no_other(
    own: type[FakeOwn], file: Path, option: list[str]
) -> None:
    done = invoke_job(FakeJobs(), "submit", "--ray-cluster", str(file), *option, "--", "x")
    assert done.exit_code == 2
    assert "starts a Ray cluster for this job alone" in done.stderr
    assert own.begun == 0
