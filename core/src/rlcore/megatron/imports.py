"""Makes megatron-core and mbridge importable here, quietly, and names the device that they use."""

import importlib
import logging
import warnings

import torch

from rlcore import cpu

_LOUD = (
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.optimizer",
    "megatron.core.distributed",
    "mbridge",
)
"""Modules that warn, while they are imported, of TransformerEngine and apex, which rlcore does without."""


def prepare() -> None:
    """Install the CPU platform where there is no GPU, then import the modules that warn. Idempotent."""
    cpu.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LOUD:
            importlib.import_module(name)
    # its warnings tell the user of settings that rlcore chose
    logging.getLogger("megatron").setLevel(logging.ERROR)


def device() -> torch.device:
    """Where parameters and batches of this process live: its current GPU, or the CPU."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
