"""Resolved runs for tests, without the command: of the installed plugins, by the names of flags."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlcore.compose.resolved import Resolved
from rlcore.config import toml
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select


@cache
def installed() -> Plugins:
    """Every installed plugin."""
    return load(Switches())


def run_of(algorithm: str, flags: Mapping[str, object] | None = None) -> Resolved:
    """The run of `--algo ALGORITHM --model qwen3 --engine local` and `flags`, as the command line has them.

    Raises `UserError`: the sentence that the command would print.
    """
    return resolved({"algo": algorithm, "model": "qwen3", "engine": "local", **(flags or {})})


def resolved(flags: Mapping[str, object], file: Path | None = None) -> Resolved:
    """The run of `flags` alone, and of `--config FILE`."""
    layer = Layer(label=str(file), values=toml.read_settings(file)) if file else None
    return resolve(select(installed().registry, layer, Layer(label="", values=flags)))
