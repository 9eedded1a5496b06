"""Compare the safetensors in a directory with its config.json, by reading their headers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.api.errors import ModelError
from rlcore.api.types import parse_json

INDEX = "model.safetensors.index.json"
OUTPUT_HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def check_weights(
    path: Path, *, shapes: bool = True, output_head: bool = True, classifier: bool = False
) -> None:
    """ModelError where files of a directory are missing or cut off, or have other shapes than its config.json
    says.

    Workers and engines would find this out only after their start. `shapes`: False for files that rlcore has
    written, which saves the import of the model's class. `output_head`: False for a critic, which may have a
    scalar head or none. `classifier`: the model is a sequence classifier.
    """
    shapes_found = shapes_in(path)
    if not shapes:
        return
    for name, shape in expected_shapes(path, classifier=classifier).items():
        if name == OUTPUT_HEAD and not output_head:
            continue
        if name not in shapes_found:
            raise ModelError(f"{path}: lacks the weight {name!r} {shape} that its config.json calls for.")
        if shapes_found[name] != shape:
            raise ModelError(
                f"{path}: the weight {name!r} is {shapes_found[name]}, but its config.json calls for {shape}."
            )


def shapes_in(path: Path) -> dict[str, Shape]:
    """The shape of each tensor in the directory's files. Raises ModelError where one cannot be read."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, Shape] = {}
    for file in _files(path):
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - it is no mapping
                    shapes[name] = tuple(handle.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: cannot be read as safetensors ({error}).") from error
    return shapes


def _files(path: Path) -> list[Path]:
    """The directory's safetensors. ModelError where one that the index names is missing."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: holds no weights, expected *.safetensors files.")
    index = path / INDEX
    if not index.is_file():
        return files
    try:
        named = set(parse_json(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: is no index of safetensors files ({error!r}).") from error
    missing = sorted(named - {file.name for file in files})
    if missing:
        raise ModelError(
            f"{path}: {', '.join(missing)} of its {len(named)} weight files, which {INDEX} names, "
            f"{'is' if len(missing) == 1 else 'are'} missing."
        )
    return files


def expected_shapes(path: Path, *, classifier: bool = False) -> Mapping[str, Shape]:
    """Name and shape of each tensor that transformers would save for a model of this config."""
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.core_model_loading import revert_weight_conversion

    try:
        config = AutoConfig.from_pretrained(path)
        # transformers leaves much of it untyped
        models: Any = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
        # Shapes alone: the weights may be larger than the memory of this machine.
        with torch.device("meta"):
            model = models.from_config(config)
    except (ValueError, KeyError, OSError, TypeError, StrictDataclassError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"{path / 'config.json'} cannot be read: {reason}") from error
    # transformers saves a tied matrix once, and some families under other names than their modules have.
    tied = model.all_tied_weights_keys
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}
