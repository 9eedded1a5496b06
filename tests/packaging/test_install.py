"""`pip install .` at the root, and of one plugin, into environments that have third-party packages only."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from environments import environment, install, offered

pytestmark = pytest.mark.full  # every member is built and installed

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [
    path.parent
    for folder in ("machine", "core", "sandbox", "toolkit", "testing", "cli", "plugins/*/*")
    for path in ROOT.glob(f"{folder}/pyproject.toml")
]


def name_of(member: Path) -> str:
    return str(tomllib.loads((member / "pyproject.toml").read_text())["project"]["name"])


def files(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def test_the_root_installs_the_whole_of_every_member(tmp_path: Path, third_party: Path) -> None:
    site = environment(tmp_path / "env", third_party)
    install(tmp_path / "env", ROOT)
    installed = {dist.name: dist for dist in distributions(path=[str(site)])}
    assert set(installed) == {"rlcore-workspace", *map(name_of, MEMBERS)}
    for member in MEMBERS:
        [package] = (member / "src").iterdir()
        assert files(site / package.name) == files(package)
    for dist in installed.values():
        assert dist.metadata["License-Expression"] == "Apache-2.0"
        assert dist.metadata["Description-Content-Type"] == "text/markdown"
    listed, broken = offered(tmp_path / "env")
    assert listed == set(installed) - {
        "rlcore",
        "rlcore-workspace",
        "rlcore-machine",
        "rlcore-sandbox",
        "rlcore-toolkit",
        "rlcore-testing",
    }
    assert not broken


def test_one_plugin_installs_by_itself_once_core_is_there(tmp_path: Path, third_party: Path) -> None:
    environment(tmp_path / "env", third_party)
    command = (
        "machine",
        "core",
        "toolkit",
        "testing",
        "plugins/rewards/functions",
        "cli",
    )
    install(tmp_path / "env", *(ROOT / member for member in command))
    own = {"rlcore-cli", "rlcore-functions"}
    assert offered(tmp_path / "env") == (own, [])
    install(tmp_path / "env", ROOT / "plugins/generators/single_turn")
    assert offered(tmp_path / "env") == ({*own, "rlcore-single-turn"}, [])
