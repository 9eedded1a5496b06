"""`rlcore new`: every kind is linted and typed as it comes, and what it cannot do is one sentence."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from program import Program
from refusals import Case, cases

from rlcore import Kind, __version__
from rlcore.config.layers import Layer
from rlcore.plugins.loader import load
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select
from rlcore_new.package import DEMO, kinds, licenses, this_line, write_package
from rlcore_testing.programs import ran

ROOT = Path(__file__).resolve().parents[4]
LONGEST = 24


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_a_template_for_each_kind() -> None:
    assert kinds() == sorted([*Kind, "command"])


def test_a_package_brings_what_the_demo_needs() -> None:
    chosen = select(load().registry, None, Layer(label="", values={"algo": "grpo", "model": "qwen3"}))
    assert {info.dist for info in resolve(chosen).plugins} <= {f"rlcore-{name}" for name in DEMO}


def made_of_every_kind(folder: Path, length: int) -> list[Path]:
    """A package of each kind, with names of `length` letters."""
    packages = []
    for number, kind in enumerate(kinds()):
        name = f"{chr(97 + number)}{'m' * (length - 1)}"
        packages.append(folder / f"rlcore-{name}")
        write_package(kind, name, "Apache-2.0", packages[-1])
    return packages


@pytest.mark.parametrize("length", [2, LONGEST])
def test_ruff_has_nothing_to_say(tmp_path: Path, length: int) -> None:
    packages = made_of_every_kind(tmp_path, length)
    for check in (["check"], ["format", "--check", "--diff"]):
        done = ran(sys.executable, "-m", "ruff", *check, "--no-cache", *packages, limit_s=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_mypy_has_nothing_to_say(tmp_path: Path) -> None:
    """With the settings that each package has."""
    packages = made_of_every_kind(tmp_path, 9)
    modules = [package / part for package in packages for part in ("src", "tests")]
    done = ran(
        *(sys.executable, "-m", "mypy", "--config-file", str(packages[0] / "pyproject.toml")),
        *("--cache-dir", str(tmp_path / "cache"), *map(str, modules)),
        limit_s=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_package_says_of_itself(here: Path, program: Program) -> None:
    out = program("new", "value-loss", "far_away", "--license", "MIT")
    assert out.startswith("made rlcore-far-away, a plugin of the kind value_loss; next:")
    package = here / "rlcore-far-away"
    about = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert about["name"] == "rlcore-far-away"
    assert about["license"] == "MIT"
    assert (package / "LICENSE").read_text().startswith("MIT License\n\nCopyright (c) 20")
    assert about["dependencies"] == [f"rlcore{this_line(__version__)}"]
    assert about["entry-points"]["rlcore"] == {"far_away": "rlcore_far_away.plugin"}
    load_yaml = import_module("yaml").safe_load  # it has no types
    publish = load_yaml((package / ".github/workflows/ci.yml").read_text())["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    texts = {file: file.read_text() for file in package.rglob("*") if file.is_file()}
    assert not [file for file, text in texts.items() if re.search(r"my.plugin|MyPlugin|MY_", text)]
    assert "class FarAway:" in texts[package / "src/rlcore_far_away/value_loss.py"]
    assert "rlcore train --algo ppo --model qwen3 --value-loss far_away" in texts[package / "README.md"]


def test_the_help_names_the_kinds(program: Program) -> None:
    said = " ".join(program("new", "--help").split())
    assert f"Kinds: {', '.join(kinds())}." in said


def test_every_license_is_a_text_of_its_own() -> None:
    assert licenses() == ["Apache-2.0", "BSD-3-Clause", "MIT"]


@pytest.mark.parametrize(
    ("version", "line"), [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("2.4.1", ">=2.4,<3")]
)
def test_a_package_asks_for_the_line_that_keeps_its_names(version: str, line: str) -> None:
    assert this_line(version) == line


@cases("new")
def test_what_cannot_be_made_is_one_sentence(here: Path, program: Program, case: Case) -> None:
    case.check(program.refused("new", *case.given))
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "owner"), [("reward", "exact_match", "text"), ("loss", "grpo", "grpo")]
)
def test_a_name_that_is_taken(kind: str, name: str, owner: str, program: Program) -> None:
    assert f"new: the name '{name}' is taken by rlcore-{owner} " in program.refused("new", kind, name)


def test_a_folder_that_is_there_stays_as_it_is(here: Path, program: Program) -> None:
    (here / "rlcore-brevity").mkdir()
    said = program.refused("new", "reward", "brevity")
    assert said == "new: rlcore-brevity exists already; take another name, or move it away."
    assert not list((here / "rlcore-brevity").iterdir())


def test_the_page_shows_what_is_made(tmp_path: Path) -> None:
    """docs/plugins.md: the three files of a reward, and a line for each kind."""
    page = (ROOT / "docs/plugins.md").read_text()
    write_package("reward", "brevity", "Apache-2.0", tmp_path / "made")
    for name in ("plugin.py", "config.py", "reward.py"):
        text = (tmp_path / "made/src/rlcore_brevity" / name).read_text()
        assert f"```python\n# {name}\n{text}```" in page
    table = page.partition("| kind | chosen by | interface |\n| --- | --- | --- |\n")[2].partition("## ")[0]
    assert sorted(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == kinds()
