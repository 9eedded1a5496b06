"""Build hook of the workspace's root: its dependencies are the members, found by their folders."""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

MEMBERS = ("machine", "core", "sandbox", "toolkit", "testing", "cli", "plugins/*/*")


def members(root: Path) -> list[Path]:
    """The folders of all members, in a fixed order."""
    return sorted(path.parent for pattern in MEMBERS for path in root.glob(f"{pattern}/pyproject.toml"))


class MemberDependencies(MetadataHookInterface):
    """Emits `name @ file-uri` for each member, so that `pip install .` installs them all."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fills in the dynamic `dependencies`."""
        metadata["dependencies"] = [_requirement(member) for member in members(Path(self.root))]


def _requirement(member: Path) -> str:
    project = tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project['name']} @ {member.resolve().as_uri()}"
