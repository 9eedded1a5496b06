"""Makes megatron-core and mbridge importable here, quietly."""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from rlcore_megatron import cpu

_GPT = "megatron.core.models.gpt"
_LOUD = (
    *(f"{_GPT}.gpt_layer_specs", f"{_GPT}.gpt_model"),
    *("megatron.core.optimizer", "megatron.core.distributed", "mbridge"),
)
"""Modules that warn, while they are imported, of TransformerEngine and apex, which rlcore does without."""


def prepare() -> None:
    """Install the CPU platform where there is no GPU, then import the modules that warn. Idempotent."""
    cpu.install()
    _spare_models()
    with warnings.catch_warnings(), _without("wandb"):
        warnings.simplefilter("ignore")
        for name in _LOUD:
            importlib.import_module(name)
    # its warnings tell the user of settings that rlcore chose
    logging.getLogger("megatron").setLevel(logging.ERROR)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Let nothing import `name`: megatron-core takes wandb where it is there, for inference that is not ours.

    That takes a third of a second of every process, and leaves two folders in /tmp where one is killed.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # how an import is forbidden
    try:
        yield
    finally:
        del sys.modules[name]


def _spare_models() -> None:
    """Let mbridge import the models that are asked for, in place of all that it has.

    With each comes its class of transformers, vision towers included: two seconds of every process.
    `mbridge.models` is filled when somebody asks for a name in it; `mbridge.models.qwen3` needs no asking.
    """
    name = "mbridge.models"
    if name in sys.modules:
        return
    # Found by its file: to ask for a submodule would import the package, which imports them all.
    package = importlib.util.find_spec("mbridge")
    folders = package.submodule_search_locations if package else None
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        return
    loader, models = spec.loader, importlib.util.module_from_spec(spec)

    def fill(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        del models.__dict__["__getattr__"]
        loader.exec_module(models)
        return getattr(models, attribute)

    models.__dict__["__getattr__"] = fill
    sys.modules[name] = models
