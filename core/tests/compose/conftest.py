"""A registry of toy parts, and a short way from flags to a resolved run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.compose.resolved import Resolved
from rlcore.compose.selection import Selection
from rlcore.config import toml
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select

TOY = Path(__file__).with_name("toy_plugin.py")
BASE = {"algo": "toy", "model": "tiny", "engine": "local"}


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    return load(
        Switches(only=("files", "local", "offline", "sampling", "sglang", "tasks"), files=(TOY,), strict=True)
    )


@pytest.fixture
def choose(plugins: Plugins) -> Callable[..., Selection]:
    """`choose(flags, file)`: the selection; the flags of `BASE` are there unless the file has them."""

    def choose(flags: dict[str, Any] | None = None, file: Path | None = None) -> Selection:
        values = (
            {key: value for key, value in toml.read_settings(file).items() if key != "plugin"} if file else {}
        )
        read = Layer(label=file.name, values=values) if file else None
        base = {key: value for key, value in BASE.items() if not read or key not in read.values}
        return select(plugins.registry, read, Layer(label="", values={**base, **(flags or {})}))

    return choose


@pytest.fixture
def make(plugins: Plugins, choose: Callable[..., Selection]) -> Callable[..., Resolved]:
    """`make(flags, file)`: the resolved run."""

    def make(flags: dict[str, Any] | None = None, file: Path | None = None) -> Resolved:
        return resolve(choose(flags, file), plugins.files)

    return make


@pytest.fixture(scope="session")
def make_with_roles() -> Callable[..., Resolved]:
    """`make_with_roles(flags)`: the resolved run, with the parts of both plugin files to choose from."""
    files = (TOY, TOY.with_name("roles_plugin.py"))
    plugins = load(Switches(only=("local", "sampling", "sglang", "tasks"), files=files, strict=True))

    def make(flags: dict[str, Any]) -> Resolved:
        chosen = select(plugins.registry, None, Layer(label="", values={**BASE, **flags}))
        return resolve(chosen, plugins.files)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """`write(text)`: the file run.toml with that text."""

    def write(text: str) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write
