"""Makes an environment: `make setup` runs `python scripts/setup_venv.py VENV -r requirements-dev.txt`.

Without a GPU it takes a CPU build of torch or stops, so that no multi-gigabyte CUDA stack lands on a laptop.
Environment: TORCH_SPEC, the requirement to install; TORCH_INDEX, the URL of a package index or a folder of
wheels to take it from (by default: wherever pip is set up to look).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
TORCH_SPEC = {"cpu": "torch==2.13.0", "gpu": "torch>=2.11"}
BUILD_TOOLS = ("hatchling>=1.27", "editables>=0.5", "setuptools>=77")
CUDA_PREFIXES = ("nvidia-", "cuda-")


def main(venv: Path, wanted: list[str]) -> None:
    """Makes `venv` and installs torch and what is `wanted`, in pip's words, into it."""
    if sys.platform != "linux":
        stop(f"rlcore runs on Linux (on Windows: in WSL), and this is {sys.platform}.")
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        stop(f"Python 3.11 or newer is needed, and {sys.executable} is {found}: run make PYTHON=python3.12.")
    if not (venv / "bin" / "python").exists():
        say(f"1 of 3: making {venv}")
        make_venv(venv)
    say("2 of 3: torch (a CPU build takes about 0.8 GB)")
    install_torch(venv)
    say("3 of 3: rlcore's members and what they depend on (about 0.8 GB; a few minutes without a word)")
    # In one build environment for all: pip would make one for each of the many members.
    pip(venv, "install", "--quiet", *BUILD_TOOLS)
    pip(venv, "install", "--quiet", "--no-build-isolation", "--no-compile", *wanted)
    compile_all(venv)
    say(f"{venv} is ready")


def make_venv(venv: Path) -> None:
    """A fresh environment, complete or absent."""
    if subprocess.run([sys.executable, "-m", "venv", str(venv)]).returncode:
        shutil.rmtree(venv, ignore_errors=True)
        stop(f"{sys.executable} -m venv failed; on Debian and Ubuntu it needs the package python3-venv.")


def install_torch(venv: Path) -> None:
    """A build that fits the machine."""
    has_gpu = shutil.which("nvidia-smi") is not None
    spec = os.environ.get("TORCH_SPEC") or TORCH_SPEC["gpu" if has_gpu else "cpu"]
    index = os.environ.get("TORCH_INDEX", "")
    source = [] if not index else ["--find-links" if Path(index).is_dir() else "--index-url", index]
    if not has_gpu:
        refuse_cuda(venv, spec, source)
    pip(venv, "install", "--no-compile", *source, spec)


def refuse_cuda(venv: Path, spec: str, source: list[str]) -> None:
    """Stops where pip would install CUDA libraries with this torch."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip(venv, "install", "--quiet", "--dry-run", "--report", str(report), *source, spec)
        planned = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = [item["metadata"]["name"].lower().replace("_", "-") for item in planned]
    if any(name.startswith(CUDA_PREFIXES) for name in names):
        stop(
            f"There is no GPU here, and the {spec} that pip would install brings the CUDA libraries with it: "
            "set TORCH_INDEX to the URL of PyTorch's CPU wheel index or to a folder of wheels, "
            "or TORCH_SPEC to a CPU build, e.g. make setup TORCH_INDEX=URL."
        )


def pip(venv: Path, *arguments: str) -> None:
    """Runs pip of the environment in the workspace's root; ends the program where it fails."""
    command = [
        str(venv.absolute() / "bin" / "python"),
        "-m",
        "pip",
        *arguments,
        "--disable-pip-version-check",
    ]
    if subprocess.run(command, cwd=ROOT).returncode:
        stop(f"pip {arguments[0]} {arguments[-1]} failed; its message is above.")


def compile_all(venv: Path) -> None:
    """Byte code of all packages, by every core: pip would take one, for a minute."""
    code = "import compileall, site; compileall.compile_dir(site.getsitepackages()[0], quiet=2, workers=0)"
    subprocess.run([str(venv.absolute() / "bin" / "python"), "-W", "ignore", "-c", code])


def say(sentence: str) -> None:
    """One line of progress."""
    print(f"setup: {sentence}", flush=True)


def stop(sentence: str) -> None:
    """Ends the program with one sentence."""
    sys.exit(f"setup: {sentence}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
