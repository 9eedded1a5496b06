"""`pip install .` at the root, and of one plugin, into environments that have third-party packages only."""

import json
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # every member is built and installed

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [
    path.parent for path in (*ROOT.glob("c*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml"))
]
OURS = ("rlcore", "_editable_impl_rlcore", "__editable__", "_virtualenv")
LIMIT_S = 280


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what this environment has beside the workspace's members."""
    folder = tmp_path_factory.mktemp("third_party")
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


def install(folder: Path, *what: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    offline = ["--disable-pip-version-check", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, *offline, *map(str, what)], check=True, timeout=LIMIT_S, cwd=folder)


def offered(folder: Path) -> tuple[set[str], list[str]]:
    """The distributions that `rlcore plugins` lists, and the broken ones."""
    command = [str(folder / "bin/rlcore"), "plugins", "--json"]
    done = subprocess.run(command, check=True, timeout=LIMIT_S, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {row["distribution"] for row in found["plugins"]}, [row["name"] for row in found["broken"]]


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
    assert listed == set(installed) - {"rlcore-workspace"}
    assert not broken


def test_one_plugin_installs_by_itself_once_core_is_there(tmp_path: Path, third_party: Path) -> None:
    environment(tmp_path / "env", third_party)
    install(tmp_path / "env", ROOT / "core", ROOT / "cli")
    assert offered(tmp_path / "env") == ({"rlcore", "rlcore-cli"}, [])
    install(tmp_path / "env", ROOT / "plugins/generators/single_turn")
    assert offered(tmp_path / "env") == ({"rlcore", "rlcore-cli", "rlcore-single-turn"}, [])
