"""Writes requirements-gpu.txt, the versions of a GPU node.

python scripts/gpu_lock.py [FILE] [--upgrade]    FILE's own versions stay where they can, without --upgrade

uv reads metadata only: nothing is installed, and no GPU is needed.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import dist
from hatch_build import members  # dist puts the root on the path
from packaging.requirements import Requirement

LOCK = dist.ROOT / "requirements-gpu.txt"
HEADER = """\
# A node with NVIDIA GPUs: x86-64, Python 3.12, CUDA 13, glibc 2.34 or newer.
# `make gpu` installs it, and the members.
# Written by scripts/gpu_lock.py.
"""
ENGINE = "sglang==0.5.23"
TOOLS = ("ray[default]", "hatchling>=1.27", "editables>=0.5")
"""`ray job submit` needs Ray's dashboard; the others build the members without a network."""
NODE = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")


def requirements() -> list[str]:
    """What the members ask for of others, the engine, and tools."""
    found = {ENGINE, *TOOLS}
    for member in members(dist.ROOT):
        about = tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found |= {one for one in about["dependencies"] if not Requirement(one).name.startswith("rlcore")}
    return sorted(found)


def resolve(lock: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Rewrites `lock`, whose own versions are preferred. uv says on stderr why it could not."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    done = subprocess.run(
        [*command, *NODE, *options, "--output-file", str(lock), "-"],
        input="\n".join(requirements()),
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        lock.write_text(HEADER + lock.read_text(encoding="utf-8"), encoding="utf-8")
    return done


if __name__ == "__main__":
    words = sys.argv[1:]
    files = [word for word in words if word != "--upgrade"]
    done = resolve(Path(files[0]) if files else LOCK, *(word for word in words if word == "--upgrade"))
    sys.exit(done.stderr or done.returncode)
