"""The public names of rlcore: what plugins may import, and what they look like."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import site_pages

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "core/src/rlcore/api"
REFERENCE = ROOT / "docs/reference"
LIBRARIES = [ROOT / "machine/src", ROOT / "sandbox/src", ROOT / "toolkit/src"]
PLUGINS = sorted(ROOT.glob("plugins/*/*/src"))
CONTRACT_LINES = 2200
"""More than a person reads in an hour. Tools that plugins share, and need not implement, stand beside it."""
CORE_LINES = 14_000
"""A core that is small enough to know."""
FSDP = ROOT / "plugins/trainers/fsdp/src/rlcore_fsdp"
FSDP_LINES = 1500
"""A trainer that one can read before changing it, without its planner."""
SHARED = (*site_pages.PACKAGES, "rlcore_cli")
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
    if module in site_pages.PACKAGES:
        return name in (*importlib.import_module(module).__all__, "__version__")
    return module.startswith("rlcore_testing.") or module in COMMANDS


def is_own(module: str, src: Path) -> bool:
    return (src / module.partition(".")[0]).is_dir()


def is_documented(path: str) -> bool:
    """A docstring says what the name is: its own, or that of its group of constants."""
    source = importlib.import_module(path.rpartition(".")[0])
    value = getattr(source, path.rpartition(".")[2])
    if inspect.isclass(value) or inspect.isroutine(value):
        return bool(inspect.getdoc(value))
    return path.rpartition(".")[2] in documented_constants(Path(str(source.__file__)))


@pytest.mark.parametrize("package", site_pages.PACKAGES)
def test_every_public_name_is_documented_and_in_the_reference(package: str) -> None:
    public = dict(site_pages.public_names(package))
    assert public.keys() == {*importlib.import_module(package).__all__} - {"__version__"}
    assert not [path for path in public.values() if not is_documented(path)]
    reference = "\n".join([site_pages.names(), *(file.read_text() for file in REFERENCE.glob("*.md"))])
    shown = set(re.findall(r"^::: ([\w.]+)", reference, re.MULTILINE))
    assert not [path for path in public.values() if not {path, path.rpartition(".")[0]} & shown]


def documented_constants(file: Path) -> set[str]:
    """Names that a module assigns right above a docstring, one a line: mkdocstrings sees no others."""
    found: set[str] = set()
    group: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            group |= {
                name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            }
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found |= group
        group = set()
    return found


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


def test_the_trainer_over_transformers_stays_small() -> None:
    files = [file for file in FSDP.rglob("*.py") if FSDP / "plan" not in file.parents]
    assert 0 < sum(map(code_lines, files)) <= FSDP_LINES


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
