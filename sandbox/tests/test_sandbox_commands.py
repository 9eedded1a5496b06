"""Commands in the sandbox, and the folders that they share."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore_sandbox import ProgramEnd, Sandbox, SandboxError, SandboxLimits

LIMIT_S = 20.0


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    folder = tmp_path / "app"
    folder.mkdir()
    folder.chmod(0o777)
    limits = SandboxLimits(seconds=LIMIT_S, processes=16)
    with Sandbox(limits, folders={"/app": str(folder), "/work/tmp": str(folder)}) as made:
        yield made


def shell(sandbox: Sandbox, command: str, seconds: float | None = None) -> ProgramEnd:
    return sandbox.run_command(
        ["/bin/sh", "-c", command], folder="/app", environment={"NAME": "ann"}, seconds=seconds
    )


def test_what_a_command_writes_is_there_for_the_next(sandbox: Sandbox, tmp_path: Path) -> None:
    assert shell(sandbox, "mkdir deep; echo $NAME > deep/file; pwd").stdout == "/app\n"
    assert (tmp_path / "app/deep/file").read_text() == "ann\n"
    assert shell(sandbox, "echo more >> deep/file; cat /work/tmp/deep/file").stdout == "ann\nmore\n"
    assert shell(sandbox, "touch /tmp/mine; exit 3").code == 3
    assert shell(sandbox, "ls /tmp").stdout == ""


def test_another_file_system_takes_the_machines_place(tmp_path: Path) -> None:
    """Made of what `sh` and `ls` need, as an image of a container would be."""
    system = tmp_path / "system"
    linked = subprocess.run(["ldd", "/bin/sh", "/bin/ls"], capture_output=True, text=True, check=True).stdout
    for name in {"/bin/sh", "/bin/ls", *re.findall(r"(/\S+\.so\S*) \(", linked)}:
        copy = system / name.removeprefix("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, copy)
    (system / "mine").write_text("")
    (system / "app").mkdir()
    folder = tmp_path / "app"
    folder.mkdir()
    with Sandbox(SandboxLimits(), folders={"/app": str(folder)}, system=str(system)) as made:
        assert made.fault() == ""
        seen = made.run_command(["/bin/ls", "/"], folder="/app").stdout.split()
    assert {"mine", "app", "bin", "tmp"} <= {*seen}
    assert not {"usr", "etc", "home"} & {*seen}


def test_nothing_else_can_be_written(sandbox: Sandbox) -> None:
    for path in ("/usr/x", "/work/x", "/x", "/etc/x"):
        done = shell(sandbox, f"echo x > {path}")
        assert done.code, path
        assert "Read-only" in done.stderr or "Permission denied" in done.stderr


def test_a_command_has_a_limit_of_its_own(sandbox: Sandbox) -> None:
    assert shell(sandbox, "sleep 60 & sleep 60", seconds=0.3).how == "timeout"
    assert shell(sandbox, "echo well").stdout == "well\n"


def test_no_command_without_isolation() -> None:
    with Sandbox(SandboxLimits(), isolated=False) as bare, pytest.raises(SandboxError, match="isolated"):
        bare.run_command(["/bin/true"], folder="/")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount it")
def test_commands_see_their_own_processes_alone(sandbox: Sandbox) -> None:
    done = shell(
        sandbox, "readlink /proc/self/exe; ls -d /proc/[0-9]*; ls /proc/1/fd; echo x > /proc/self/comm"
    )
    lines = done.stdout.split()
    assert lines[0] == os.path.realpath(shutil.which("readlink") or "")
    assert len(lines) < 8
    assert done.stderr.count("Permission denied") == 1
    assert "Read-only" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only then it can be seen")
def test_files_belong_to_nobody_of_this_machine(sandbox: Sandbox, tmp_path: Path) -> None:
    shell(sandbox, "touch file")
    assert (tmp_path / "app/file").stat().st_uid >= 2_000_000
