"""scripts/nodes/slurm.sh in a real SLURM of two nodes, both on this machine."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import LIMIT_S, SMALL, VARIABLES, Run, rows, untimed, wait_for

from rlcore_machine.network import free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "nodes" / "slurm.sh"
NODES = {"one": "127.0.0.2", "two": "127.0.0.3"}
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdTimeout=10
ReturnToService=2
FirstJobId={job}
{nodes}
PartitionName=all Nodes=one,two Default=YES
"""


class Slurm:
    """One controller and two nodes. Its files are in `folder`, its jobs in `work`."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.work = work
        self.env = {
            **os.environ,
            **VARIABLES,
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # nodes of Ray on a loopback
        }
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        host = f"NodeHostname={socket.gethostname()} CPUs=2"
        nodes = [
            f"NodeName={name} NodeAddr={address} Port={free_port()} {host}" for name, address in NODES.items()
        ]
        config = CONFIG.format(
            host=socket.gethostname(),
            port=free_port(),
            user=getpass.getuser(),
            folder=folder,
            job=secrets.randbelow(9000) + 1,  # the port of Ray depends on it
            nodes="\n".join(nodes),
        )
        (folder / "slurm.conf").write_text(config)
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o400)

    def start(self) -> None:
        """All daemons; returns once both nodes can take a job."""
        files = {
            "key-file": "key",
            "socket": "munge",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{name}={self._folder / file}" for name, file in files.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        wait_for((self._folder / "munge").exists, 30)
        self._daemon("slurmctld", "-D", "-c")
        for name in NODES:
            self.start_node(name)
        wait_for(lambda: self("sinfo", "--noheader", "--format=%D %t").split() == ["2", "idle"], 60)

    def start_node(self, name: str) -> None:
        """That node's daemon."""
        self._daemon("slurmd", "-D", "-N", name)

    def _daemon(self, *command: str) -> None:
        with (self._folder / f"{command[0]}-{command[-1]}.log".replace("/", "")).open("ab") as out:
            self._daemons[command[-1]] = subprocess.Popen(command, env=self.env, stdout=out, stderr=out)

    def __call__(self, *command: str) -> str:
        """What this command of SLURM prints."""
        done = subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout or done.stderr

    def state(self, job: str) -> str:
        return self("squeue", "--noheader", f"--job={job}", "--states=all", "--format=%T").strip()

    def lose(self, name: str) -> None:
        """The node `name`, as if its host had lost its power."""
        self._daemons[name].kill()
        self._daemons[name].wait()
        self._kill({"SLURMD_NODENAME": name})

    def stop(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._kill({})

    def _kill(self, variables: dict[str, str]) -> None:
        """What runs in a job and has these variables, and the daemons of its steps."""
        variables = {"SLURM_CONF": self.env["SLURM_CONF"], **variables}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has just ended
                environment = process.environ()
                if "SLURM_JOB_ID" not in environment or not variables.items() <= environment.items():
                    continue
                parent = process.parent()
                if parent is not None and parent.name().startswith("slurmstepd"):
                    parent.kill()
                process.kill()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if lacking:
        pytest.skip(f"without SLURM: {', '.join(lacking)} not found (Debian: apt-get install slurm-wlm)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # paths of sockets must be short
    cluster = Slurm(folder, tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_run_that_is_requeued_twice_has_the_same_metrics(slurm: Slurm, run: Run, tmp_path: Path) -> None:
    """Once the time is nearly up, and once a node is lost."""
    flags = (
        *("--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "60", "--save-every", "5", "--ranks", "2"),
        *("--engine.publish", "broadcast", "--engine.broadcast-limit-s", str(LIMIT_S)),
    )
    job = slurm("sbatch", "--parsable", "--nodes=2", "--time=30", str(SCRIPT), *flags).strip()
    folder, log = tmp_path / "runs" / f"slurm-{job}", tmp_path / f"rlcore-{job}.log"

    def trained(steps: int) -> bool:
        assert slurm.state(job) in ("PENDING", "RUNNING", "COMPLETING"), log.read_text()
        return (folder / "metrics.jsonl").is_file() and len(rows(folder)) > steps

    wait_for(lambda: trained(8))
    slurm("scancel", "--batch", f"--signal={signal.SIGUSR1.name[3:]}", job)
    wait_for(lambda: log.read_text().count("requeued") == 1)
    saved = len(rows(folder)) - 1
    assert f"checkpoints/{saved}\n" in log.read_text(), "the step at hand is saved"
    wait_for(lambda: trained(saved + 8))
    slurm.lose("two")
    slurm.start_node("two")
    wait_for(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 2 * LIMIT_S)
    assert slurm.state(job) == "COMPLETED", log.read_text()
    assert log.read_text().count("requeued") == 2

    undisturbed = tmp_path / "undisturbed"
    run("train", *flags, "--run-dir", str(undisturbed))
    assert untimed(folder) == untimed(undisturbed)
    assert not list(Path("/tmp").glob(f"rlcore-ray-{job}"))
