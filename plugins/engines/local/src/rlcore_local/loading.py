"""What a server loads of a model directory. Everything raises `ModelError` where it cannot be."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlcore import ModelError, first_line
from rlcore_local.files import tensor_names
from rlcore_toolkit import decoder_config

ALIGNMENT = 64
"""Bytes, as torch allocates. On some processors MKL's last bit depends on where a matrix begins, and within a
mapped file that depends on what stands before it."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_config(model_path: Path) -> Any:
    """The decoder's config in config.json; the quantization is of the whole model."""
    if not (model_path / "config.json").is_file():
        raise ModelError(f"--model-path {model_path} is not a model directory: it has no config.json.")
    try:
        config = AutoConfig.from_pretrained(model_path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = first_line(error)
        raise ModelError(f"--model-path {model_path}: config.json cannot be used: {reason}.") from error
    text = decoder_config(config, tensor_names(model_path))
    if hasattr(config, "quantization_config"):
        text.quantization_config = config.quantization_config
    text.architectures = text.architectures or config.architectures
    return text


def load_weights(models: Any, model_path: Path, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model, for inference. `models`: the class of transformers that makes it."""
    try:
        model: PreTrainedModel = models.from_pretrained(
            model_path, config=config, dtype=dtype, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:  # a quantization's library
        raise ModelError(
            f"--model-path {model_path}: the weights cannot be loaded: {first_line(error)}."
        ) from error
    for name, weight in model.named_parameters():
        if weight.dtype.itemsize > 1 and not weight.isfinite().all():
            raise ModelError(f"--model-path {model_path}: the weight {name!r} holds NaN or infinity.")
    return _for_inference(model)


def load_tensors(
    kind: type[PreTrainedModel], config: Any, tensors: dict[str, Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    """The model of `tensors`, by their names on disk, for inference."""
    try:
        model: PreTrainedModel = kind.from_pretrained(None, config=config, state_dict=tensors, dtype=dtype)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"The weights cannot be loaded: {first_line(error)}.") from error
    return _for_inference(model)


def _for_inference(model: PreTrainedModel) -> PreTrainedModel:
    model.requires_grad_(False)
    model.train(False)
    return model


def place(model: PreTrainedModel, device: torch.device) -> None:
    """Move the model to `device`; on the CPU, each weight to where torch would have put it."""
    model.to(device)  # type: ignore[arg-type]  # transformers' wrapper hides the signature
    for weight in model.parameters() if device.type == "cpu" else ():
        if weight.data_ptr() % ALIGNMENT:
            weight.data = weight.data.clone()


def load_tokenizer(model_path: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model directory, or None where it has none."""
    if not any((model_path / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"--model-path {model_path}: the tokenizer cannot be loaded: {error}") from error
    return tokenizer


def device_named(name: str) -> torch.device:
    """The device, made ready for models; ModelError if torch cannot compute there."""
    on_gpu = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not on_gpu:
        raise ModelError("--device cuda: torch finds no GPU here; use cpu.")
    # cuDNN's attention makes a plan for each length of the cache, which takes longer than the decoding.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda" if on_gpu else "cpu")


def context_length_of(config: Any, length: int | None) -> int:
    """The length that was asked for, or the model's own."""
    most: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if most is None and length is None:
        raise ModelError(
            "--context-length must be given, because the model states no max_position_embeddings."
        )
    if most is not None and length is not None and length > most:
        raise ModelError(
            f"--context-length {length} is more than the model's max_position_embeddings {most}."
        )
    return length or most or 0
