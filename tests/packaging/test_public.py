"""The public names of rlcore: what plugins may import, and what they look like."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import public_names
import pytest

from rlcore import deprecated
from rlcore.api import types

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "core/src/rlcore/api"
LIBRARIES = [ROOT / "machine/src", ROOT / "sandbox/src", ROOT / "toolkit/src"]
PLUGINS = sorted(ROOT.glob("plugins/*/*/src"))
CONTRACT_LINES = 2200
"""More than a person reads in an hour. Tools that plugins share, and need not implement, stand beside it."""
CORE_LINES = 14_000
"""A core that is small enough to know."""
SHARED = (*public_names.PACKAGES, "rlcore_cli")
COMMANDS = {"rlcore_cli.program"}
"""A plugin with a command may know what its context holds."""


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of what a file imports of what others build on, in functions and for types too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] in SHARED:
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] in SHARED)


def is_public(module: str, name: str) -> bool:
    if module in public_names.PACKAGES:
        return name in (*importlib.import_module(module).__all__, "__version__")
    return module.startswith("rlcore_testing.") or module in COMMANDS


def is_own(module: str, src: Path) -> bool:
    return (src / module.partition(".")[0]).is_dir()


@pytest.mark.parametrize("what", public_names.LISTS)
def test_every_public_name_is_there_and_kept(what: str) -> None:
    kept = (public_names.KEPT / f"{what}.txt").read_text()
    assert public_names.described(what) == kept, (
        "if it is meant: python scripts/public_names.py --write, and the changelog"
    )


@pytest.mark.parametrize("what", public_names.LISTS)
def test_what_the_last_release_offered_is_there_or_was_deprecated(what: str) -> None:
    released, kept = (folder / f"{what}.txt" for folder in (public_names.RELEASED, public_names.KEPT))
    missing = public_names.broken(released.read_text() if released.is_file() else "", kept.read_text())
    assert not missing, "deprecate it for one minor release first: docs/versions.md"


def test_a_function_without_a_signature_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import rlcore_toolkit

    monkeypatch.setattr(rlcore_toolkit, rlcore_toolkit.__all__[0], max)
    with pytest.raises(SystemExit, match=r"^max: its signature cannot be read, so no change of it would"):
        public_names.described("rlcore_toolkit")


RELEASED = """ACTIVE = 1
class Old()  # deprecated
    field: int
class Sample(Base)
    __init__(self) -> None
    text: str
    but(self)  # deprecated
    turned(self, by: int, *, seed: int = …) -> Sample
rlcore_dice() -> Iterable[Component]
class rlcore_testing.dice.DiceConformance(Conformance)
    sides: ClassVar[int] = …
run.dice
run.lots  # deprecated
reward.dice.sides
eval/*/dice@*
"""


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("ACTIVE = 1", "ACTIVE = 2\nPASSIVE = 1", []),
        ("ACTIVE = 1", "AKTIVE = 1", ["ACTIVE"]),
        ("class Old()  # deprecated\n    field: int\n", "", []),
        ("class Sample(Base)", "class Sample(Other)", []),
        ("    text: str\n", "", ["Sample.text"]),
        ("    but(self)  # deprecated\n", "", []),
        ("rlcore_dice()", "rlcore_die()", ["rlcore_dice"]),
        ("    sides: ClassVar[int] = …\n", "", ["rlcore_testing.dice.DiceConformance.sides"]),
        ("run.dice\n", "", ["run.dice"]),
        ("run.lots  # deprecated\n", "", []),
        ("reward.dice.sides", "reward.dice.side", ["reward.dice.sides"]),
        ("eval/*/dice@*", "eval/*/dice", ["eval/*/dice@*"]),
        ("__init__(self)", "__init__(self, more: int = …)", []),
        ("__init__(self)", "__init__(self, more: int)", ["Sample.__init__(more)"]),
        ("by: int, *, seed: int = …", "by: int, *, seed: int = …, rest: int = …", []),
        (
            "by: int, *, seed: int = …",
            "of: int",
            ["Sample.turned(by)", "Sample.turned(of)", "Sample.turned(seed)"],
        ),
    ],
)
def test_only_what_was_deprecated_may_go(before: str, after: str, missing: list[str]) -> None:
    assert before in RELEASED
    assert public_names.broken(RELEASED, RELEASED.replace(before, after)) == missing


def test_the_public_names_themselves_can_be_compared() -> None:
    kept = (public_names.KEPT / "rlcore.txt").read_text()
    assert public_names.broken(kept, kept) == []
    assert public_names.broken(kept, kept.replace("did_you_mean(name: str", "did_you_mean(word: str")) == [
        "did_you_mean(name)",
        "did_you_mean(word)",
    ]


def test_a_deprecated_name_works_and_says_what_to_use_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import rlcore

    monkeypatch.delitem(vars(rlcore), "Json", raising=False)
    monkeypatch.setitem(deprecated.DEPRECATED, "Json", "rlcore.Sample")
    said = r"^rlcore\.Json is deprecated, and the next minor release has no such name: use rlcore\.Sample\.$"
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=said) as told:
            from rlcore import Json
        assert Json is types.Json
        assert {one.filename for one in told} == {__file__}
    assert re.search(r"^class Json\b.*  # deprecated$", public_names.described("rlcore"), re.MULTILINE)


def test_a_deprecated_name_is_still_public() -> None:
    import rlcore

    assert set(deprecated.DEPRECATED) <= set(rlcore.__all__)
    for instead in deprecated.DEPRECATED.values():
        assert instead.removeprefix("rlcore.").partition(".")[0] in rlcore.__all__


@pytest.mark.parametrize("src", [*LIBRARIES, *PLUGINS], ids=lambda src: src.parent.name)
def test_whoever_builds_on_rlcore_imports_public_names_only(src: Path) -> None:
    files = list(src.rglob("*.py"))
    assert files
    found = [(file.name, *one) for file in files for one in imported(file) if not is_own(one[0], src)]
    assert not [one for one in found if not is_public(*one[1:])]


def test_the_contract_imports_nothing_else_of_rlcore() -> None:
    found = {module for file in API.glob("*.py") for module, _ in imported(file)}
    assert "rlcore.api.types" in found
    assert not [module for module in found if not module.startswith("rlcore.api.")]


def code_lines(file: Path) -> int:
    """Lines of code: no blank line, comment or docstring, of a field either."""
    text = file.read_text()
    told = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    ]
    docstrings = {line for node in told for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [line.strip() for at, line in enumerate(text.splitlines(), 1) if at not in docstrings]
    return len([line for line in lines if line and not line.startswith("#")])


def test_the_contract_can_be_read_in_an_hour(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text('"""A\nB."""\n\n# C\nclass D:\n    e: str = "f"  # G\n    """H."""\n')
    assert code_lines(example) == 2
    assert sum(map(code_lines, API.glob("*.py"))) <= CONTRACT_LINES
    assert sum(map(code_lines, API.parent.rglob("*.py"))) <= CORE_LINES


def test_without_the_cli_its_names_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "lazy_loader").symlink_to(Path(str(importlib.import_module("lazy_loader").__file__)).parent)
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[rlcore.python]\ntrain = os:getcwd\n")
    code = "import rlcore; rlcore.ConfigError; assert 'train' not in rlcore.__all__; rlcore.train"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": f"{ROOT / 'core/src'}:{tmp_path}"},
    )
    said = "MissingPackageError: rlcore.train needs the rlcore program: pip install rlcore-cli."
    assert done.stderr.splitlines()[-1] == f"rlcore.api.errors.{said}"


def test_the_names_of_a_plugin_module_load_neither_torch_nor_ray() -> None:
    code = """
import sys, rlcore
assert {"train", "Run", "Sample"} <= {*dir(rlcore)} & {*rlcore.__all__}
from rlcore import train, Run
from rlcore import Component, Config, Reward, Sample, Score, hookimpl
heavy = {"torch", "ray", "transformers", "numpy", "aiohttp"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stderr
