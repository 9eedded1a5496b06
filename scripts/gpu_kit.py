"""The folder that a machine with a GPU and without a network needs: `make gpu-kit`, docs/gpu_proof.md.

python scripts/gpu_kit.py [FOLDER] [--python 3.12]    build/gpu-kit by default, made anew

Wheels of all members, and of what they ask for and the machine lacks, in the versions that are installed
here. `HAS` names what the machine brings: torch, transformers and their like. No file is over 60 MB.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import dist
from hatch_build import members  # dist puts the root on the path
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MOST = 60 * 1000 * 1000
HAS = {
    *("accelerate", "aiohttp", "attrs", "click", "einops", "filelock", "huggingface-hub", "lazy-loader"),
    *(
        "markdown-it-py",
        "mpmath",
        "msgpack",
        "narwhals",
        "numpy",
        "packaging",
        "pluggy",
        "protobuf",
        "psutil",
    ),
    *("pyarrow", "pyyaml", "requests", "rich", "safetensors", "sympy", "tokenizers", "torch", "tqdm"),
    *("transformers", "typing-extensions", "xxhash"),
}
KERNELS = ("fla-core==0.6.0", "liger-kernel==0.8.5")
"""Optional on a GPU, so not installed here."""
PLATFORMS = (
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_35_x86_64",
)
SCRIPTS = ("scripts/gpu_proof.py", "scripts/gpu_pieces.py", "benchmarks")
INSTALL = """\
#!/bin/sh
# sh install.sh [VENV]    without a network; PYTHON names the interpreter (it must have torch)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/venv}
cd "$here/wheels"
for first in *.whl.00; do
    [ -e "$first" ] || continue
    cat "${first%.00}".[0-9][0-9] >"${first%.00}"
done
sha256sum --check --quiet ../SHA256SUMS
python=${PYTHON:-python3}
"$python" -m venv --without-pip "$venv"
# --no-deps: everything is either here or on the machine, and pip must not replace the machine's torch
"$python" -m pip --python "$venv/bin/python" install --quiet --no-index --no-deps ./*.whl
# by a .pth: where the interpreter is of an environment itself, --system-site-packages would look past it;
# and only now, so that pip neither counts on what is there nor removes it
site=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
"$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$site/machine.pth"
cd "$here"
"$venv/bin/python" scripts/gpu_proof.py --list
"""


def main() -> None:
    """See the top."""
    options = argparse.ArgumentParser(description="Make the folder that docs/gpu_proof.md speaks of.")
    options.add_argument("folder", nargs="?", type=Path, default=dist.ROOT / "build" / "gpu-kit")
    options.add_argument("--python", default="3.12", help="version of the machine's Python")
    args = options.parse_args()
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    with TemporaryDirectory() as built:
        dist.main(Path(built))
        ours = [shutil.move(file, wheels / file.name) for file in Path(built).glob("*.whl")]
    download([*sorted(lacking()), *KERNELS], wheels, args.python)
    others = seal(folder) - len(ours)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    print(f"{folder}: {len(ours)} members, {others} other wheels, {size:.0f} MB")


def seal(folder: Path) -> int:
    """Make a kit of a folder that has `wheels`: their sums, their parts, scripts. Returns how many it has."""
    files = sorted((folder / "wheels").glob("*.whl"))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(sums))
    for file in files:
        cut(file)
    (folder / "install.sh").write_text(INSTALL)
    for name in SCRIPTS:
        take(name, folder)
    return len(files)


def lacking() -> set[str]:
    """`name==version` of what the members ask for, directly or not, without what the machine has."""
    seen: set[str] = set()
    found: set[str] = set()
    asked = ["rlcore-cli", *(f"rlcore-{member.name}" for member in members(dist.ROOT))]
    while asked:
        name = canonicalize_name(asked.pop())
        if name in seen or name in HAS:
            continue
        seen.add(name)
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # optional there, or a member whose distribution is called otherwise
        if not name.startswith("rlcore"):
            found.add(f"{name}=={one.version}")
        asked += needs(one.requires or ())
    return found


def needs(requires: list[str] | tuple[()]) -> Iterator[str]:
    """The names of requirements that hold without extras."""
    for text in requires:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name


def download(pinned: list[str], folder: Path, python: str) -> None:
    """Wheels for `python` on Linux, from wherever pip is set up to look."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    if subprocess.run([*command, "--disable-pip-version-check", *pinned]).returncode:
        sys.exit("gpu-kit: pip could not bring a wheel; its message is above.")


def cut(file: Path) -> None:
    """Into NAME.00, NAME.01, … where it is too large for one."""
    content = file.read_bytes()
    if len(content) <= MOST:
        return
    for number, start in enumerate(range(0, len(content), MOST)):
        file.with_name(f"{file.name}.{number:02}").write_bytes(content[start : start + MOST])
    file.unlink()


def take(name: str, folder: Path) -> None:
    """Copy a file or folder of the repository to the same place of the kit."""
    source, to = dist.ROOT / name, folder / name
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "tests", "results"))
    else:
        shutil.copy(source, to)


if __name__ == "__main__":
    main()
