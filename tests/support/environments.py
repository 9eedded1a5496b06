"""Environments that have third-party packages and what a test installs, but not the source tree."""

import json
import subprocess
import sys
import venv
from pathlib import Path

OURS = ("rlcore", "_editable_impl_rlcore", "__editable__", "_virtualenv")
LIMIT_S = 280


def link_third_party(folder: Path) -> Path:
    """`folder` with what this environment has beside the members: torch is not installed twice."""
    sites = [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    for entry in (entry for site in sites for entry in site.iterdir()):
        if not entry.name.startswith(OURS) and not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    return folder


def environment(folder: Path, third_party: Path) -> Path:
    """A new environment; its folder of packages."""
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "third_party.pth").write_text(f"{third_party}\n")
    return site


def install(folder: Path, *what: Path | str, index: Path | None = None) -> None:
    """By pip, into the environment `folder`. `index`: a folder of wheels; else folders are built."""
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    offline = ["--disable-pip-version-check", "--no-index", "--no-build-isolation"]
    found = ["--find-links", str(index), "--only-binary", ":all:"] if index else []
    subprocess.run([*pip, *offline, *found, *map(str, what)], check=True, timeout=LIMIT_S, cwd=folder)


def offered(folder: Path) -> tuple[set[str], list[str]]:
    """The distributions that `rlcore plugins` lists, and the broken ones."""
    command = [str(folder / "bin/rlcore"), "plugins", "--json"]
    done = subprocess.run(command, check=True, timeout=LIMIT_S, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {row["distribution"] for row in found["plugins"]}, [row["name"] for row in found["broken"]]
