"""Imports point one way: between the packages of core, between modules, and between members."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("machine", "core", "sandbox", "toolkit", "testing", "cli", "plugins/*/*")
MEMBERS = sorted(src for folder in FOLDERS for src in ROOT.glob(f"{folder}/src"))
FOREIGN = {"site", "templates"}
"""Folders of these names are on the path of another Python, or of none."""

MODULE_OF = {"pyyaml": "yaml"}
"""Distributions whose module has another name."""

Graph = dict[str, set[str]]


def modules(src: Path) -> dict[str, Path]:
    """Dotted name → file."""
    files = [file for file in src.rglob("*.py") if FOREIGN.isdisjoint(file.relative_to(src).parts)]
    return {
        ".".join(file.relative_to(src).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }


MODULES = {name: file for src in MEMBERS for name, file in modules(src).items()}


def imports(file: Path, *, typing: bool) -> Iterator[str]:
    """What of this workspace a module imports, in functions too. `typing`: for types alone too."""
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in whole)


def graph(names: Iterable[str], *, typing: bool = False) -> Graph:
    """Module → what it imports of `names`."""
    known = set(names)
    return {name: (set(imports(MODULES[name], typing=typing)) & known) - {name} for name in sorted(known)}


def circle(found: Mapping[str, set[str]]) -> str | None:
    """The names of a circle, each of which imports the next; None where there is none."""
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


def package(module: str) -> str:
    """`rlcore.data.urls` → `data`; a module beside the packages stands for itself."""
    return [*module.split("."), ""][1]


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in ("b -> c -> b", "c -> b -> c")
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None


def packages() -> Graph:
    """Package of core → those that it imports, for types alone too."""
    found: Graph = {}
    for module, wanted in graph((n for n in MODULES if n.partition(".")[0] == "rlcore"), typing=True).items():
        found.setdefault(package(module), set()).update(map(package, wanted))
    return {name: wanted - {name} for name, wanted in found.items()}


def test_no_packages_of_core_import_each_other() -> None:
    assert circle(packages()) is None


def test_the_five_ways_are_ways() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("### Five ways")[2].partition("\n## ")[0]
    ways = re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]
    assert len(ways) == 5
    lengths = []
    for way in ways:
        named = {f"rlcore.{name}" for name in re.findall(r"`([a-z]+\.[a-z_]+)`", way)} - {
            "rlcore.engine.publish"
        }
        named |= set(re.findall(r"`(rlcore_[a-z]+\.[a-z_]+)`", way))
        lengths.append(len(named))
        assert len(named) >= 4
        assert named <= set(MODULES)
        hops = graph(named, typing=True)
        assert not [
            name for name in named if not hops[name] and not any(name in hop for hop in hops.values())
        ]
    assert lengths[4] <= 8, "a setting passes at most eight modules on its way to its reader"


def test_a_package_of_core_imports_those_above_it_in_the_list() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("### The packages of core")[2]
    order = re.findall(r"^\| `(\w+)` \|", table.partition("\n##")[0], re.MULTILINE)
    assert set(order) == {path.parent.name for path in (ROOT / "core/src/rlcore").glob("*/__init__.py")}
    found = packages()
    upwards = [(name, other) for at, name in enumerate(order) for other in found[name] & set(order[at:])]
    assert not upwards


def test_the_contract_names_no_other_package_of_core() -> None:
    texts = {name: file.read_text() for name, file in MODULES.items() if package(name) == "api"}
    assert not [name for name, text in texts.items() if re.search(r'"rlcore\.(?!api\b)\w+\.', text)]


def test_a_wing_of_the_trainer_imports_those_before_it() -> None:
    order = ["imports", "rng", "parallel", "packs", "layers", "bridges"]
    order += ["checkpoint", "optimizer", "role", "rank"]
    names = [name for name in MODULES if name.startswith("rlcore_megatron.mcore.")]
    wings = {name: order.index(name.split(".")[2]) for name in names}
    found = graph(names, typing=True)
    assert not [(name, other) for name in names for other in found[name] if wings[other] > wings[name]]


def test_no_modules_import_each_other() -> None:
    assert circle(graph(MODULES)) is None


@pytest.mark.parametrize("src", MEMBERS, ids=lambda src: src.parent.name)
def test_a_member_imports_only_what_it_depends_on(src: Path) -> None:
    project = tomllib.loads((src.parent / "pyproject.toml").read_text())["project"]
    texts = [project["name"], *project.get("dependencies", ())]
    texts += project.get("optional-dependencies", {}).get("testing", ())
    required = [re.match(r"[\w-]+", text) for text in texts]
    allowed = {MODULE_OF.get(found[0], found[0].replace("-", "_")) for found in required if found}
    found = {name.partition(".")[0] for file in modules(src).values() for name in imports(file, typing=True)}
    assert found <= allowed


@pytest.mark.parametrize("folder", ["core", "cli", "plugins/commands/plan"])
def test_core_and_command_know_no_trainer_by_name(folder: str) -> None:
    files = list((ROOT / folder / "src").rglob("*.py"))
    assert len(files) > 3
    assert not [file for file in files if "megatron" in file.read_text().lower()]


def test_core_names_sglang_once_as_the_origin_of_its_protocol() -> None:
    files = [file for file in (ROOT / "core/src").rglob("*.py*") if file.suffix != ".pyc"]
    assert sum(file.read_text().lower().count("sglang") for file in files) == 1


@pytest.mark.parametrize("src", [ROOT / "core/src", ROOT / "cli/src"], ids=["core", "cli"])
def test_core_and_command_know_no_cluster_by_name(src: Path) -> None:
    files = list(src.rglob("*.py"))
    assert len(files) > 5
    assert not [
        file for file in files if re.search(r"\bray\b|rlcore_ray|rlcore_processes", file.read_text(), re.I)
    ]


def test_only_compute_threads_sets_torchs_threads() -> None:
    found = [name for name, file in MODULES.items() if "set_num_threads(" in file.read_text()]
    assert found == ["rlcore_machine.threads"]


def test_bridges_get_megatron_from_the_trainer_alone() -> None:
    """On a CPU neither mbridge nor megatron may be imported before `rlcore_megatron.mcore`."""
    for file in sorted(ROOT.glob("plugins/models/*/src/**/*.py")):
        for node in ast.parse(file.read_text()).body:
            found = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [found]
            assert not {name.partition(".")[0] for name in names} & {"mbridge", "megatron"}, file
