"""Resolved runs for tests, without the command: of the installed plugins, by the names of flags."""

from collections.abc import Mapping
from functools import cache

from rlcore.compose.resolved import Resolved
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
    plugins = installed()
    values = {"algo": algorithm, "model": "qwen3", "engine": "local", **(flags or {})}
    return resolve(select(plugins.registry, None, Layer(label="", values=values)))
