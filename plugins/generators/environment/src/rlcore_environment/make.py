"""From the settings to a factory of environments."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from rlcore import ConfigError, MissingPackageError
from rlcore_environment.config import EnvironmentConfig
from rlcore_environment.protocol import Environment
from rlcore_environment.source import VERIFIERS
from rlcore_toolkit import load_object

ADAPTERS = {"gymnasium": "GymnasiumEnvironment", "textarena": "TextArenaEnvironment"}
PACKAGES = {
    "gymnasium": "gymnasium>=1.0",
    "textarena": "textarena>=0.7",
    "verifiers": VERIFIERS,
}
"""Package of a kind → what pip installs."""


def factory(config: EnvironmentConfig) -> Callable[[], Environment]:
    """What makes an environment for a sample.

    Raises `ConfigError` where the name leads to none, `MissingPackageError` where its package is missing. Of
    a package's environments one is made to see.
    """
    if config.kind == "class":
        made = _own(config.environment)
        return lambda: made(**config.options)
    if config.kind == "openenv":
        from rlcore_environment.adapters import openenv

        server = openenv.find_server(config.environment, config.options)
        return lambda: openenv.OpenEnvEnvironment(server)
    if importlib.util.find_spec(config.kind) is None:
        raise MissingPackageError(
            f"--generator.kind {config.kind}: its package is not installed; "
            f'pip install "{PACKAGES[config.kind]}".'
        )
    if config.kind == "verifiers":
        from rlcore_environment.adapters import verifiers

        loaded = verifiers.load(config.environment, config.options)  # holds the data set: one for all samples
        return lambda: verifiers.VerifiersEnvironment(config.environment, config.options, loaded)
    module = importlib.import_module(f"rlcore_environment.adapters.{config.kind}")
    adapter: Callable[..., Environment] = getattr(module, ADAPTERS[config.kind])
    adapter(config.environment, config.options)
    return lambda: adapter(config.environment, config.options)


def _own(name: str) -> Callable[..., Environment]:
    constructor = load_object(name, "--generator.environment")
    for method in ("reset", "step"):
        if not callable(getattr(constructor, method, None)):
            raise ConfigError(f"--generator.environment {name}: has no {method}(), expected an environment.")
    made: Callable[..., Environment] = constructor
    return made
