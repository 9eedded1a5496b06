"""Every member of the workspace is a distribution of its own, made alike."""

import re
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("machine", "core", "sandbox", "toolkit", "testing", "cli", "plugins/*/*")
MEMBERS = sorted(path.parent for folder in FOLDERS for path in ROOT.glob(f"{folder}/pyproject.toml"))
VERSION = "0.1.0"
CORE_REQUIREMENT = "rlcore>=0.1,<0.2"


def read(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(folder)["project"]
    return found


def import_name(folder: Path) -> str:
    return str(project(folder)["name"]).replace("-", "_")


def sources(folder: Path) -> set[str]:
    """The files of the package, as paths in a wheel."""
    src = folder / "src"
    files = (path for path in src.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(src).as_posix() for path in files}


def each_member(test: Any) -> Any:
    return pytest.mark.parametrize("member", MEMBERS, ids=lambda path: path.name)(test)


def test_there_are_members_of_every_kind() -> None:
    found = {member.relative_to(ROOT).parts[:2] for member in MEMBERS}
    kinds = (
        *("algorithms", "callbacks", "clusters", "commands", "engines", "generators", "model_hooks"),
        *("models", "producers", "rewards", "sources", "trackers", "trainers"),
    )
    others = ("machine", "core", "sandbox", "toolkit", "testing", "cli")
    assert found == {*((name,) for name in others), *(("plugins", kind) for kind in kinds)}


@each_member
def test_a_member_states_what_it_is(member: Path) -> None:
    about = project(member)
    assert about["license"] == "Apache-2.0"
    assert about["version"] == VERSION
    assert about["requires-python"] == ">=3.11"
    assert about["description"]
    assert (member / about["readme"]).read_text().startswith("# ")
    assert any((member / "tests").rglob("test_*.py")), "a member has tests of its own"
    assert f"{import_name(member)}/py.typed" in sources(member)
    assert {path.split("/")[0] for path in sources(member)} == {import_name(member)}


@each_member
def test_a_member_has_one_entry_point_named_after_it(member: Path) -> None:
    name = import_name(member).removeprefix("rlcore").removeprefix("_")
    expected = {name: f"rlcore_{name}.plugin"}
    if name in ("", "machine", "sandbox", "toolkit", "testing"):  # core and libraries: they bring no part
        assert "entry-points" not in project(member)
        return
    groups = project(member)["entry-points"]
    assert groups.pop("rlcore") == expected
    assert set(groups) == ({"rlcore.python"} if name == "cli" else set())
    module = next(iter(expected.values())).replace(".", "/")
    assert f"{module}.py" in sources(member)


@each_member
def test_a_plugin_requires_the_core_of_its_line(member: Path) -> None:
    required = project(member)["dependencies"]
    on_core = [one for one in required if re.match(r"rlcore\b(?!-)", one)]
    assert on_core == ([] if member.name in ("machine", "core") else [CORE_REQUIREMENT])
    on_members = [one for one in required if one.startswith("rlcore-")]
    assert all(one.endswith(CORE_REQUIREMENT.removeprefix("rlcore")) for one in on_members)
    assert not [one for one in required if "==" in one], "no exact pins"


def test_core_alone_needs_no_trainer_cluster_model_library_or_http_server() -> None:
    needed = {re.split(r"\W", one, maxsplit=1)[0] for one in project(ROOT / "core")["dependencies"]}
    assert "torch" in needed
    assert not needed & {"megatron", "mbridge", "ray", "transformers"}
    assert not needed & {"fastapi", "uvicorn", "starlette", "flask"}
    files = [file.read_text() for file in (ROOT / "core/src").rglob("*.py")]
    assert not [text for text in files if "aiohttp.web" in text or "aiohttp import web" in text]


def test_torch_has_a_lower_bound_only() -> None:
    (torch,) = [one for one in project(ROOT / "core")["dependencies"] if re.match(r"torch\b", one)]
    assert torch == "torch>=2.11"


def test_the_workspace_lists_every_member() -> None:
    folders = [member.relative_to(ROOT).as_posix() for member in MEMBERS]
    editable = [
        line.removeprefix("-e ./")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line.startswith("-e ")
    ]
    assert sorted(editable) == folders
    assert {f"{folder}/src" for folder in folders} <= set(read(ROOT)["tool"]["mypy"]["mypy_path"])


def test_the_root_requires_every_member_by_its_folder(tmp_path: Path) -> None:
    build = "import hatchling.build, sys; hatchling.build.prepare_metadata_for_build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, timeout=60)
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    headers = Parser().parsestr(metadata.read_text())
    assert headers["Name"] == "rlcore-workspace"
    assert headers["Version"] == VERSION
    assert "Private :: Do Not Upload" in headers.get_all("Classifier", [])
    assert sorted(headers.get_all("Requires-Dist", [])) == sorted(
        f"{project(member)['name']} @ {member.as_uri()}" for member in MEMBERS
    )
