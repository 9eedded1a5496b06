"""Compare the safetensors in a directory with its config.json, by reading their headers only."""

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlcore.api.errors import ModelError
from rlcore.api.types import parse_json

INDEX = "model.safetensors.index.json"
OUTPUT_HEAD = "lm_head.weight"
ROOT = "model."
"""How the names of a decoder's weights begin that is alone."""
NESTED = {"model.language_model.": "", "language_model.model.": "language_model."}
"""How they begin beside a vision tower, and what is before the name of the output layer there."""

ROWS_AT_ONCE = 4096
"""Rows of a matrix that are compared at a time."""

Shape = tuple[int, ...]


def check_weights(
    path: Path, *, shapes: bool = True, output_head: bool = True, classifier: bool = False
) -> None:
    """ModelError where files of a directory are missing or cut off, or have other shapes than its config.json
    says.

    Workers and engines would find this out only after their start. `shapes`: False for files that rlcore has
    written, which saves the import of the model's class. `output_head`: False for a value model, which may
    have a scalar head or none. `classifier`: the model is a sequence classifier.
    """
    shapes_found = shapes_in(path)
    if not shapes:
        return
    for name, shape in expected_shapes(path, shapes_found, classifier=classifier).items():
        if name.endswith(OUTPUT_HEAD) and not output_head:
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
    """The safetensors that trainers read: what the index names, else model.safetensors, else all of them.

    ModelError where one that the index names is missing.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: holds no weights, expected *.safetensors files.")
    index = path / INDEX
    if not index.is_file():
        single = path / "model.safetensors"
        return [single] if single in files else files
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
    return [file for file in files if file.name in named]


def expected_shapes(
    path: Path, found: Collection[str] = (), *, classifier: bool = False
) -> Mapping[str, Shape]:
    """Name and shape of each tensor that transformers would save for a model of this config.

    `found`: the names in its files. Transformers saves a decoder as it was loaded: maybe as a part of a
    larger model, and with the experts of a layer in one tensor.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.core_model_loading import revert_weight_conversion

    try:
        config = AutoConfig.from_pretrained(path)
        # transformers leaves much of it untyped
        models: Any = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
        if type(config) not in models._model_mapping:
            config = config.get_text_config()
        # Shapes alone: the weights may be larger than the memory of this machine.
        with torch.device("meta"):
            model = models.from_config(config)
    except Exception as error:  # a model's class raises what it likes
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1].strip()
        kind = "" if isinstance(error, ValueError | OSError | StrictDataclassError) else type(error).__name__
        raise ModelError(f"{path / 'config.json'} cannot be read: {kind and kind + ': '}{reason}") from error
    # transformers saves a tied matrix once, and some families under other names than their modules have.
    tied = model.all_tied_weights_keys
    _check_tied(path, tied, found)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    own = {id(tensor): name for name, tensor in state.items()}
    saved = {
        # of Kimi-Linear it would save a dense MLP by a name that published files do not have
        own[id(one)] if own.get(id(one)) in found else name: one
        for name, one in revert_weight_conversion(model, dict(state)).items()
    }
    root = decoder_root(found)
    forms = [
        {name_in_files(name, root): tuple(one.shape) for name, one in form.items()} for form in (saved, state)
    ]
    return next((form for form in forms if form.keys() <= set(found)), forms[0])


def decoder_root(names: Collection[str]) -> str:
    """How the names of a decoder's weights begin in files that hold `names`: `ROOT`, or one of `NESTED`."""
    return next((root for root in NESTED if any(name.startswith(root) for name in names)), ROOT)


def name_in_files(name: str, root: str) -> str:
    """The name, in files with that `decoder_root`, of the weight that is `name` in a decoder alone."""
    return NESTED.get(root, "") + name if name == OUTPUT_HEAD else re.sub(f"^{re.escape(ROOT)}", root, name)


def _check_tied(path: Path, tied: Mapping[str, str], found: Collection[str]) -> None:
    """ModelError where the files give a matrix that config.json ties another content than its source.

    transformers keeps both, and a trainer would tie them.
    """
    for name, source in tied.items():
        if {name, source} <= set(found) and not _equal(path, name, source):
            raise ModelError(
                f"{path}: its config.json ties {name!r} to {source!r}, but its files hold two different "
                "matrices; set tie_word_embeddings to false there, or leave the matrix out."
            )


def _equal(path: Path, *names: str) -> bool:
    """Whether two tensors of the directory's files have the same content, read in part after part."""
    import torch
    from safetensors import safe_open

    with ExitStack() as stack:
        handles = [stack.enter_context(safe_open(file, framework="pt")) for file in _files(path)]
        one, other = (
            next(handle.get_slice(name) for handle in handles if name in handle.keys())  # noqa: SIM118 - it is no mapping
            for name in names
        )
        return one.get_shape() == other.get_shape() and all(
            torch.equal(one[start : start + ROWS_AT_ONCE], other[start : start + ROWS_AT_ONCE])
            for start in range(0, one.get_shape()[0], ROWS_AT_ONCE)
        )
