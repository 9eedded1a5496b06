"""Plugins that are copied out of the repository, renamed and installed as wheels work unchanged."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Run, rows

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("algorithms/grpo", "generators/single_turn", "models/qwen", "producers/sampling", "rewards/text")
KEPT = ("clusters", "engines", "sources", "trackers", "trainers")
"""Kinds of which a run needs one, and of which none is copied."""
OURS, THEIRS = "rlcore", "acme"
RECORD_NAME = re.compile(r'\bname="(\w+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the renamed plugins, installed from wheels."""
    root = tmp_path_factory.mktemp("third_party")
    wheels, target = root / "wheels", root / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for member in COPIED:
        copy = shutil.copytree(ROOT / "plugins" / member, root / member, ignore=_no_caches)
        _rename(copy)
        _call(
            [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(wheels), str(copy)]
        )
    _call(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(target), *map(str, wheels.glob("*.whl"))]
    )
    return target


@pytest.mark.timeout(600)
def test_renamed_wheels_train_without_the_bundled_plugins(run: Run, site: Path, tmp_path: Path) -> None:
    bundled = [_entry_name(ROOT / "plugins" / member) for member in COPIED]
    members = [file.parent for file in ROOT.glob("plugins/*/*/pyproject.toml")]
    all_of_ours = [_entry_name(member) for member in members if member.parent.name not in KEPT]
    kept = {f"{OURS}-{_entry_name(member)}" for member in members if member.parent.name in KEPT}
    off = [switch for name in all_of_ours for switch in ("-p", f"no:{name}")]
    theirs: dict[str, Any] = {"packages": [str(site)], "env": {"PYTHONPATH": str(site)}}
    listed = json.loads(run(*off, "plugins", "--json", **theirs).stdout)
    assert listed["broken"] == []
    providers = {part["distribution"] for part in listed["plugins"]}
    assert providers == {"rlcore-cli", *kept, *(f"{THEIRS}-{n.replace('_', '-')}" for n in bundled)}

    folder = tmp_path / "run"
    parts = ("--algo", "acme_grpo", "--model", "acme_qwen3", "--reward", "acme_token_match")
    chosen = (*parts, "--generator", "acme_single_turn")
    run(*off, "train", *chosen, *SMALL, "--steps", "2", "--run-dir", str(folder), **theirs)
    assert len(rows(folder)) == 3
    assert rows(folder)[1]["train/grad_norm"] > 0
    (start,) = (folder / "provenance.jsonl").read_text().splitlines()
    used = set(json.loads(start)["plugins"])
    assert not set(bundled) & used
    assert {f"{THEIRS}_{name}" for name in bundled} <= used


def _rename(member: Path) -> None:
    """Another distribution, import package, entry point and other component names; nothing else."""
    package = next((member / "src").iterdir())
    theirs = package.name.replace(OURS, THEIRS, 1)
    project = member / "pyproject.toml"
    text = project.read_text().replace(package.name, theirs)
    text = text.replace(f'name = "{OURS}-', f'name = "{THEIRS}-')
    project.write_text(
        re.sub(rf"(?m)^(\w+) = \"{theirs}\.plugin\"$", rf'{THEIRS}_\1 = "{theirs}.plugin"', text)
    )
    package = package.rename(package.with_name(theirs))
    for file in package.rglob("*.py"):
        file.write_text(file.read_text().replace(package.name.replace(THEIRS, OURS, 1), theirs))
    files = [file for file in (package / "plugin.py", package / "recipes.py") if file.exists()]
    names = {name for file in files for name in RECORD_NAME.findall(file.read_text())}
    assert names, "a plugin offers something"
    for file in files:
        text = file.read_text()
        for name in names:
            text = text.replace(f'"{name}"', f'"{THEIRS}_{name}"')
        file.write_text(text)


def _entry_name(member: Path) -> str:
    [name] = tomllib.loads((member / "pyproject.toml").read_text())["project"]["entry-points"]["rlcore"]
    return str(name)


def _no_caches(folder: str, names: Sequence[str]) -> set[str]:
    return {name for name in names if name in ("__pycache__", "tests", "build", "dist")}


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
