"""What is looked at whatever a run is made of: Python, torch, GPUs, memory, disks, limits, ports."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from rlcore import Diagnosis
from rlcore_machine import free_port

GB = 10**9
MEMORY_GB, DISK_GB, TEMPORARY_GB, SHARED_GB = 4, 5, 1, 1
"""What the demo takes, and some to spare."""
OPEN_FILES = 1024
"""A run with a few engines and reward workers has hundreds of sockets and pipes."""
NEWEST_PYTHON = (3, 12)
GPU_LIMIT_S = 20.0
SHARED = Path("/dev/shm")
Check = Callable[[], Iterator[Diagnosis]]


def python() -> Iterator[Diagnosis]:
    """The interpreter."""
    version = sys.version_info[:2]
    interpreter = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    remedy = (
        "" if version <= NEWEST_PYTHON else "rlcore is tested with Python 3.11 and 3.12: use one of them."
    )
    yield Diagnosis(what="python", found=interpreter, remedy=remedy, stops=False)


def torch() -> Iterator[Diagnosis]:
    """The build of torch, and whether it sees the GPUs of the machine."""
    names = _gpu_names()
    try:
        import torch
    except Exception as error:
        remedy = "Install torch>=2.11: `make setup` in a clone, else `pip install torch`."
        yield Diagnosis(what="torch", found=f"cannot be imported: {_text(error)}", remedy=remedy)
        return
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    seen = torch.cuda.is_available()
    remedy = ""
    if names and not torch.version.cuda:
        remedy = f"This build cannot use the GPU ({names[0]}): install one for CUDA."
    elif names and not seen:
        remedy = "torch does not see the GPU: update NVIDIA's driver, or look at CUDA_VISIBLE_DEVICES."
    yield Diagnosis(what="torch", found=f"{torch.__version__}, {build}", remedy=remedy, stops=False)


def gpus() -> Iterator[Diagnosis]:
    """Each GPU with its driver and memory."""
    names = _gpu_names()
    for name in names:
        yield Diagnosis(what="gpu", found=name)
    if not names:
        yield Diagnosis(what="gpu", found="none: models are small, and train on the CPU")


def memory() -> Iterator[Diagnosis]:
    """Memory that is free, and shared memory."""
    free = psutil.virtual_memory().available
    remedy = "" if free >= MEMORY_GB * GB else f"The demo takes {MEMORY_GB} GB: end other programs."
    yield Diagnosis(what="memory", found=f"{free / GB:.1f} GB free", remedy=remedy, stops=False)
    if not SHARED.is_dir():
        yield Diagnosis(what="shared memory", found=f"no {SHARED}: new weights go over the disk")
        return
    free = shutil.disk_usage(SHARED).free
    remedy = (
        "" if free >= SHARED_GB * GB else "In a container: start it with `--shm-size 8g`, or `--ipc host`."
    )
    yield Diagnosis(what="shared memory", found=f"{free / GB:.1f} GB free", remedy=remedy, stops=False)


def files() -> Iterator[Diagnosis]:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    if soft >= OPEN_FILES:
        remedy = ""
    elif wanted >= OPEN_FILES:
        remedy = f"Raise it: `ulimit -n {wanted}` before `rlcore train`."
    else:
        remedy = (
            "Only root can raise it: `nofile` in /etc/security/limits.conf; of a container, start it with "
            "`--ulimit nofile=65536`."
        )
    yield Diagnosis(what="open files", found=f"{soft} of a process", remedy=remedy)


def disks() -> Iterator[Diagnosis]:
    """Where runs are written by default, and the folder for temporary files."""
    yield _room("disk of this folder", Path.cwd(), DISK_GB, "Name a folder elsewhere: --run-dir PATH.")
    wanted = os.environ.get("TMPDIR", "")
    remedy = "Set TMPDIR to a folder that can be written to."
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        yield Diagnosis(what="temporary files", found=str(error), remedy=remedy)
        return
    if wanted and Path(wanted).resolve() != folder.resolve():  # Python has tried to write there
        problem = f"TMPDIR={wanted} is full or cannot be written to, so that Python takes {folder}"
        yield Diagnosis(what="temporary files", found=problem, remedy=remedy)
        return
    yield _room("temporary files", folder, TEMPORARY_GB, "Set TMPDIR to a folder elsewhere.")


def ports() -> Iterator[Diagnosis]:
    """Whether a server on loopback can be reached."""
    try:
        with socket.create_server(("127.0.0.1", free_port())) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        remedy = "Engines and workers talk over 127.0.0.1: let the firewall or sandbox allow it."
        yield Diagnosis(what="loopback", found=f"cannot be reached: {error}", remedy=remedy)
        return
    yield Diagnosis(what="loopback", found="servers can be reached")


def _room(what: str, folder: Path, need_gb: int, remedy: str) -> Diagnosis:
    free = shutil.disk_usage(folder).free
    space = f"{free / GB:.1f} GB free in {folder}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return Diagnosis(what=what, found=f"{folder} cannot be written to: {error.strerror}", remedy=remedy)
    return Diagnosis(what=what, found=space, remedy="" if free >= need_gb * GB else remedy, stops=False)


def _gpu_names() -> list[str]:
    """Name, memory and driver of each, as NVIDIA's own program tells; none without it."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=GPU_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [f"{line.strip()} (driver)" for line in done.stdout.splitlines() if line.strip()] * (
        not done.returncode
    )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


CHECKS: tuple[Check, ...] = (python, torch, gpus, memory, files, disks, ports)
"""Those that take less than seconds, torch's import aside."""
