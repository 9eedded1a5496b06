"""A run in a Ray that is somebody else's, and that outlives it; a run where there is no Ray."""

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pages
import psutil
import pytest
from command import LIMIT_S, SMALL, VARIABLES, Run, Start, rows, wait_for
from refusals import sentence

from rlcore_machine.network import free_port

# Ray takes the loopback's address for another one unless it is told that no other host takes part, and makes
# its workers nice: on a busy machine they would get no time.
ENV = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
HERE, THERE = "127.0.0.2", "127.0.0.3"
"""Not 127.0.0.1, which Ray would replace in a cluster of several hosts."""
PATIENT = ("--engine.start-limit-s", str(LIMIT_S), "--engine.broadcast-limit-s", str(LIMIT_S))
RAY_JOBS = Path(sys.prefix) / "ray-jobs"
LEAVES_S = 30.0
"""Seconds within which a run ends whose host is gone."""
OURS = ("ray::TrainWorker", "ray::EngineSupervisor", "rlcore_local")


def _typed(line: str) -> list[str]:
    """The words behind `line` in the documentation's own way to try a cluster out."""
    page = pages.fences(pages.DOCS / "nodes.md")
    [words] = [
        one[len(line) :].split() for block in page for one in pages.lines(block) if one.startswith(line)
    ]
    return words


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of the cluster and of those who may use it, because they know its token."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    return {**ENV, "RAY_AUTH_TOKEN_PATH": str(token)}


@pytest.fixture
def cluster(env: dict[str, str], tmp_path: Path) -> Iterator[tuple[psutil.Popen, str]]:
    """The Ray head node of the documentation, with its address."""
    with _head("127.0.0.1", env, tmp_path, *_typed("ray start --head --num-cpus")) as found:
        yield found


@contextlib.contextmanager
def _head(
    host: str, env: dict[str, str], tmp_path: Path, cpus: str, *more: str
) -> Iterator[tuple[psutil.Popen, str]]:
    port = free_port()
    folder = tempfile.mkdtemp(prefix="ray-")  # sockets lie in it, whose paths must be short
    options = [
        "--head",
        f"--num-cpus={cpus}",
        f"--port={port}",
        f"--temp-dir={folder}",
        *(more or ("--include-dashboard=false",)),
    ]
    with _node(host, options, env, tmp_path / "head.txt") as head:
        yield head, f"{host}:{port}"
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _node(host: str, options: Sequence[str], env: dict[str, str], log: Path) -> Iterator[psutil.Popen]:
    """One node of a cluster, until the end of the block."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    # Its ranges of ports would hold that of the head now and then, or that of another cluster.
    command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
    with log.open("w") as out:
        node = psutil.Popen(
            [*command, f"--node-ip-address={host}", *options],
            env={**os.environ, **env},
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None)
        assert node.poll() is None, log.read_text()
        yield node
    finally:
        tree = [node, *(node.children(recursive=True) if node.poll() is None else [])]
        with contextlib.suppress(psutil.NoSuchProcess):  # the test has ended it
            node.terminate()
        _, left = psutil.wait_procs(tree, timeout=20)
        for process in left:
            process.kill()


def test_a_run_leaves_the_cluster_as_it_was(
    cluster: tuple[psutil.Popen, str], env: dict[str, str], run: Run, tmp_path: Path
) -> None:
    head, address = cluster
    folder = tmp_path / "run"
    typed = _typed("rlcore train --algo grpo --model qwen3 --cluster.address")
    flags = ("--algo", "grpo", "--model", "qwen3", "--cluster.address", address, *typed[1:])
    run("train", *flags, *SMALL, "--steps", "2", "--run-dir", str(folder), env=env)
    assert [row["step"] for row in rows(folder)] == [0, 1, 2]
    assert head.poll() is None
    wait_for(lambda: not _lines(head), limit=30)
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    known = {**os.environ, **env, "RAY_AUTH_MODE": "token"}

    def said() -> str:
        done = subprocess.run(status, env=known, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.stdout + done.stderr

    # the cluster counts what was given back with a delay
    wait_for(lambda: "0.0/4.0 CPU" in said())


def test_a_run_where_ray_cannot_be_imported(run: Run, tmp_path: Path) -> None:
    """Core and the cluster `processes` need none."""
    (tmp_path / "ray.py").write_text("raise ImportError('No module named ray')")
    fresh: dict[str, Any] = {"env": {"PYTHONPATH": str(tmp_path)}, "fresh": True}
    folder = tmp_path / "run"
    flags = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "2")
    run(*flags, "--cluster", "processes", "--run-dir", str(folder), **fresh)
    assert [row["step"] for row in rows(folder)] == [0, 1, 2]
    run("train", "--resume", str(folder), "--steps", "3", **fresh)
    assert rows(folder)[-1]["step"] == 3, "it goes on in its own cluster"


@pytest.fixture
def two_hosts(env: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of two hosts: a CPU of the second is needed where three are."""
    with _hosts(env, tmp_path, 2, 1) as address:
        yield address


@contextlib.contextmanager
def _hosts(env: dict[str, str], tmp_path: Path, here: int, there: int) -> Iterator[str]:
    """A cluster of two hosts with so many CPUs."""
    env |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_AUTH_MODE": "token"}
    with (
        _head(HERE, env, tmp_path, str(here)) as (_, address),
        _node(THERE, [f"--address={address}", f"--num-cpus={there}"], env, tmp_path / "node.txt"),
    ):
        yield address


@pytest.mark.timeout(900)
def test_engines_on_two_hosts(two_hosts: str, env: dict[str, str], run: Run, tmp_path: Path) -> None:
    """The one that is not beside the trainer gets its weights by broadcast; by shared memory it could not."""
    folder = tmp_path / "run"
    flags = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--engines", "2", "--steps", "2")
    where = ("--cluster.address", two_hosts, "--run-dir", str(folder))
    refused = sentence(run(*flags, *where, env=env, code=2).stderr)
    assert f"engine 1 would run on {THERE}, and --engine.publish shared_memory reaches none" in refused
    assert not folder.exists()
    run(*flags, *where, "--engine.publish", "broadcast", *PATIENT, env=env, limit=2 * LIMIT_S)
    assert [row["weight_version"] for row in rows(folder)[1:]] == [0, 1]
    assert all(row["train/kl_engine_max"] < 1e-4 and not row["engine/replaced"] for row in rows(folder)[1:])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("here", "there", "flags"),
    [
        (0, 2, ("--engine.publish", "broadcast")),  # nobody is beside the command
        (1, 2, ("--ranks", "2")),  # the engine takes buckets from rank 1, which is on its host
    ],
    ids=["broadcast", "shared_memory"],
)
def test_ranks_are_wherever_there_is_room(
    env: dict[str, str], run: Run, tmp_path: Path, here: int, there: int, flags: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    small = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "2", *PATIENT, *flags)
    with _hosts(env, tmp_path, here, there) as address:
        command = run(
            *small, "--cluster.address", address, "--run-dir", str(folder), env=env, limit=2 * LIMIT_S
        )
    assert [row["weight_version"] for row in rows(folder)[1:]] == [0, 1]
    assert all(row["train/kl_engine_max"] < 1e-4 and not row["engine/replaced"] for row in rows(folder)[1:])
    wait_for(lambda: not [*Path("/dev/shm").glob(f"rlcore-weights-{command.process.pid}-*")])


@pytest.mark.timeout(900)
def test_a_host_that_leaves_in_the_middle_ends_the_run(
    env: dict[str, str], start: Start, tmp_path: Path
) -> None:
    """With a train worker and the engine. The reason is told within 30 s."""
    folder = tmp_path / "run"
    model = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "1000")
    with _hosts(env, tmp_path, 1, 2) as address:
        where = ("--cluster.address", address, "--run-dir", str(folder))
        command = start(*model, "--ranks", "2", *PATIENT, *where, env=env)
        metrics = folder / "metrics.jsonl"
        wait_for(lambda: metrics.is_file() and len(rows(folder)) > 1, 2 * LIMIT_S, alive=command)
        [there] = [
            one for one in psutil.Process().children() if f"--node-ip-address={THERE}" in one.cmdline()
        ]
        for process in [there, *there.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # Ray's workers end with their node
                process.kill()
        assert command.wait(LEAVES_S) == 1
        said = sentence(command.stderr)
        assert re.search(r"Train worker 1 (died|has given no sign of life)", said), said


@pytest.mark.sglang
@pytest.mark.timeout(1800)
def test_an_engine_on_two_hosts(two_hosts: str, env: dict[str, str], run: Run, tmp_path: Path) -> None:
    """One of its two ranks on each."""
    folder = tmp_path / "run"
    python = os.environ["RLCORE_SGLANG_PYTHON"]
    run(
        *("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "2", "--run-dir", str(folder)),
        *("--cluster.address", two_hosts, "--engine", "sglang", "--engine.python", python),
        *("--sglang.tp-size", "2", "--sglang.nnodes", "2", "--engine.publish", "tensor"),
        env=env,
        limit=1500.0,
    )
    assert [row["weight_version"] for row in rows(folder)[1:]] == [0, 1]
    assert all(row["train/kl_engine_max"] < 1e-4 and not row["engine/replaced"] for row in rows(folder)[1:])
    logs = [(folder / "logs" / f"engine-0{node}.log").read_text() for node in ("", "-node-1")]
    assert [["TP0" in log, "TP1" in log] for log in logs] == [[True, False], [False, True]]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_run_as_a_job_of_ray(env: dict[str, str], tmp_path: Path) -> None:
    """Its logs and its end are those of the command. A job that is stopped saves, and another one goes on."""
    if not RAY_JOBS.is_dir():
        pytest.skip(f"{RAY_JOBS} is not there: `make setup` installs what a Ray needs to take jobs")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env |= {**VARIABLES, "PYTHONPATH": str(RAY_JOBS), "PATH": path, "RAY_AUTH_MODE": "token"}
    port = free_port()
    folder = tmp_path / "run"
    with _head("127.0.0.1", env, tmp_path, "4", f"--dashboard-port={port}", "--dashboard-host=127.0.0.1"):
        env["RAY_ADDRESS"] = f"http://127.0.0.1:{port}"

        def job(*words: str) -> tuple[int, str]:
            done = subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "job", *words],
                env={**os.environ, **env},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            return done.returncode, done.stdout + done.stderr

        def train(*words: str, options: Sequence[str] = ()) -> tuple[int, str]:
            return job("submit", *options, "--", "rlcore", "train", "--cluster.address", "auto", *words)

        model = ("--algo", "grpo", "--model", "qwen3", *SMALL, "--run-dir", str(folder))
        code, said = train(*model, "--engines", "99")
        assert code == 1, said
        assert "exit code 2" in said
        assert "and the Ray cluster has 4: lower --ranks or --engines" in said

        train(*model, "--steps", "100000", options=("--no-wait", "--submission-id", "long"))
        metrics = folder / "metrics.jsonl"
        wait_for(lambda: metrics.is_file() and len(rows(folder)) > 3)
        job("stop", "long")
        saved = rows(folder)[-1]["step"]
        assert f"checkpoint of step {saved}: go on with" in job("logs", "long")[1]
        assert not any(row["rollout/reward_failed"] for row in rows(folder)[1:])

        code, said = train("--resume", str(folder), "--steps", str(saved + 2))
        assert code == 0, said
        assert f"completed: step {saved + 2} after" in said


def _lines(head: psutil.Popen) -> list[str]:
    """What of a run is left among the cluster's processes."""
    lines = []
    for process in head.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if any(name in line for name in OURS)]
