"""The weights of the served model: loaded, replaced in place, and summed up, by their Hugging Face names."""

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rlcore import FP8_SCALE_SUFFIX, DeltaError, ModelError, checksum, fp8_block
from rlcore_local.decoder import Decoder
from rlcore_local.fp8 import Fp8Held
from rlcore_local.generic import GenericDecoder, is_generic
from rlcore_local.lean import LeanDecoder, is_lean
from rlcore_local.loading import (
    context_length_of,
    device_named,
    load_config,
    load_tensors,
    load_weights,
    place,
)
from rlcore_local.requests import RequestError
from rlcore_local.routed import RoutedExperts
from rlcore_toolkit import Offload, apply_delta, by_rows, copy_into

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
"""The names of dtypes on the wire."""


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class SharedTensor(BaseModel):
    """Where one tensor lies in a shared file: C order, little-endian, `offset` in bytes from the start."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    dtype: str
    shape: list[int]
    offset: int = Field(ge=0)

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class Weights:
    """A model on `device`, and its decoder.

    `path`: "lean" or "generic". `context_length`: as asked, or the model's own. `routed`: where it has
    experts, those that its tokens go to.
    """

    def __init__(
        self, model_path: Path, dtype: torch.dtype, context_length: int | None, device: str = "cpu"
    ) -> None:
        self.device = device_named(device)
        model, self._fp8 = load_model(model_path, dtype)
        place(model, self.device)
        self.model = model
        self._offload = Offload()
        self.context_length = context_length_of(self.model.config, context_length)
        self.decoder: Decoder
        if is_lean(self.model.config):
            self.path, self.decoder = "lean", LeanDecoder(self.model, self.context_length)
        else:
            self.path, self.decoder = "generic", GenericDecoder(self.model)
        self.routed = RoutedExperts.of(self.model)
        self._tied = set(self.model.all_tied_weights_keys)
        self._parameters = {
            name: tensor for name, tensor in self.model.state_dict().items() if name not in self._tied
        }
        disk_names = revert_weight_conversion(self.model, dict(self._parameters)).keys()
        self._is_converted = disk_names != self._parameters.keys()
        self._beyond: dict[str, Tensor] = {}
        """Of layers for multi-token prediction, as they were published last: held, and not used."""

    def tensors(self) -> dict[str, Tensor]:
        """All weights by the names and shapes that they have on disk; a tied output matrix is left out.

        Those in FP8 come with their scales. Where a family is held otherwise in memory (fused experts), some
        are copies.
        """
        return {**self._used(), **self._fp8.tensors, **self._beyond}

    def _used(self) -> dict[str, Tensor]:
        if not self._is_converted:
            return self._parameters
        # On the CPU, for a conversion copies what it joins, and a trainer may need the GPU.
        held = {name: tensor.cpu() for name, tensor in self._parameters.items()}
        disk: dict[str, Tensor] = revert_weight_conversion(self.model, held)
        return disk

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        return len(weight)

    def release(self) -> None:
        """Move the weights from a GPU to host memory, until `reclaim`."""
        self._offload.move(self._parameters.values())

    def reclaim(self) -> None:
        """Undo `release`."""
        self._offload.restore()

    def update_from_disk(self, model_path: Path) -> None:
        """Replace all weights by those of another directory. `RequestError`: nothing was changed."""
        if not (model_path / "config.json").is_file():
            raise RequestError(f"model_path: {model_path} is not a model directory (it has no config.json)")
        try:
            files = sorted(model_path.glob("*.safetensors"))
            self._replace({name: tensor for file in files for name, tensor in _read(file)}, complete=True)
        except OSError as error:
            raise RequestError(f"model_path: {model_path} cannot be read: {error}") from error

    def update_from_file(self, path: Path, layout: list[SharedTensor]) -> None:
        """Replace the weights that lie in a file, by mapping it. `RequestError`: nothing was changed."""
        try:
            with path.open("rb") as file:
                # By copy on write, since torch warns of memory that it must not write to.
                # Closed with the last tensor that looks into it.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise RequestError(f"{path} cannot be mapped: {error}") from error
        self._replace({entry.name: _view(mapped, entry) for entry in layout}, complete=False)

    def update_from_delta(self, file: Path, version: str) -> None:
        """Replace what `file` changes of version `version`, held. `RequestError`: nothing was changed."""
        try:
            self._require_here()
            new = dict(apply_delta(file, self.tensors(), version))
        except DeltaError as error:
            raise RequestError(str(error)) from error
        self._replace(new, complete=False)

    def update_from_tensors(self, new: Mapping[str, Tensor]) -> None:
        """Replace some weights. `RequestError`: nothing was changed."""
        self._replace(new, complete=False)

    def _replace(self, new: Mapping[str, Tensor], *, complete: bool) -> None:
        """Check names and shapes of all, then copy; values are cast to the engine's dtype."""
        self._require_here()
        held = self._used()
        beyond = {name: tensor for name, tensor in new.items() if _is_beyond(name, self.model.config)}
        small, new = self._fp8.split({name: tensor for name, tensor in new.items() if name not in beyond})
        if complete and (lacking := sorted(self._fp8.tensors.keys() - small.keys())):
            raise RequestError(f"{len(lacking)} tensors are missing, among them {lacking[0]!r}")
        new |= self._fp8.stand_for(small)
        new = {name: tensor for name, tensor in new.items() if name not in self._tied}
        if unknown := sorted(new.keys() - held.keys()):
            raise RequestError(f"{len(unknown)} tensors are not of this model, among them {unknown[0]!r}")
        if complete and (missing := sorted(held.keys() - new.keys())):
            raise RequestError(f"{len(missing)} tensors are missing, among them {missing[0]!r}")
        for name, tensor in new.items():
            if tensor.shape != held[name].shape:
                was, wanted = list(tensor.shape), list(held[name].shape)
                raise RequestError(f"{name}: the shape is {was}, but the model has {wanted}")
        source = self._converted({**held, **new}) if self._is_converted else new
        for name, tensor in source.items():
            copy_into(self._parameters[name], tensor)
        self._fp8.keep(small)
        # copies: what comes may be a file that is mapped
        self._beyond |= {name: tensor.clone() for name, tensor in beyond.items()}
        self.decoder.refresh()

    def _converted(self, disk: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as on disk, in the form that the model has in memory."""
        with torch.inference_mode(False):
            # Parameters cannot be made of tensors that were made in inference mode; their clones are not.
            clones = {name: tensor.to("cpu", copy=True) for name, tensor in disk.items()}
            model = load_tensors(type(self.model), self.model.config, clones, self.model.dtype)
        state = model.state_dict()
        return {name: state[name] for name in self._parameters}

    def checksums(self) -> dict[str, str]:
        """`checksums.checksum` of each tensor as the engine holds it, so in the engine's dtype."""
        self._require_here()
        return {name: checksum(by_rows(tensor)) for name, tensor in self.tensors().items()}

    def _require_here(self) -> None:
        if self._offload.nbytes:
            raise RequestError("The weights have no memory until /resume_memory_occupation.")


def load_model(model_path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Fp8Held]:
    """Load a directory for inference; the second is what of it is in FP8.

    ModelError, in one sentence, where it cannot be loaded.
    """
    config = load_config(model_path)
    if not is_lean_or_generic(config):
        raise ModelError(
            f"--model-path {model_path}: the local engine cannot serve model type {config.model_type!r}, "
            "because it serves causal decoders whose layers all keep keys and values."
        )
    return load_full(AutoModelForCausalLM, model_path, config, dtype)


def load_full(
    models: Any, model_path: Path, config: Any, dtype: torch.dtype
) -> tuple[PreTrainedModel, Fp8Held]:
    """The model of `config` with full weights, as `load_model`. `models`: as for `load_weights`."""
    block = fp8_block(getattr(config, "quantization_config", None))
    if block is None:
        return load_weights(models, model_path, config, dtype), Fp8Held(None, {})
    del config.quantization_config  # transformers would compute in FP8, for which it needs a GPU
    try:
        files = sorted(model_path.glob("*.safetensors"))
        every = (pair for file in files for pair in _read(file))
        tensors = {name: tensor for name, tensor in every if not _is_beyond(name, config)}
        held = Fp8Held.of(block, tensors)
        small, full = held.split(tensors)
        with torch.device("meta"):
            kind = type(models.from_config(config))
        return load_tensors(kind, config, full | held.stand_for(small), dtype), held
    except (OSError, RequestError) as error:
        raise ModelError(f"--model-path {model_path}: the weights cannot be loaded: {error}") from error


def _is_beyond(name: str, config: Any) -> bool:
    """Whether the weight is of a layer for multi-token prediction, which transformers leaves out."""
    match = _LAYER.match(name)
    more = getattr(config, "num_nextn_predict_layers", 0) or 0
    return match is not None and 0 <= int(match[1]) - config.num_hidden_layers < more


def is_lean_or_generic(config: Any) -> bool:
    """Whether either decoder serves this config."""
    known = type(config) in AutoModelForCausalLM._model_mapping
    return known and (is_generic(config) or is_lean(config))


def _read(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Scales of FP8 weights come as fp32, as they do in a publication; some are published in bf16."""
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - not a mapping, it has no __iter__
            tensor = opened.get_tensor(name)
            yield name, tensor.float() if name.endswith(FP8_SCALE_SUFFIX) else tensor


def _view(mapped: mmap.mmap, entry: SharedTensor) -> Tensor:
    """A tensor over mapped bytes, without a copy."""
    if entry.dtype not in DTYPES:
        raise RequestError(f"layout: {entry.name} has dtype {entry.dtype!r}, known are {', '.join(DTYPES)}")
    dtype = DTYPES[entry.dtype]
    if entry.offset + entry.count * dtype.itemsize > len(mapped):
        raise RequestError(f"layout: {entry.name} ends after the file does ({len(mapped)} bytes)")
    flat = torch.frombuffer(mapped, dtype=dtype, count=entry.count, offset=entry.offset)
    return flat.reshape(entry.shape)


def stop_token_ids(model_path: Path, config: Any) -> frozenset[int]:
    """The end tokens that config.json and generation_config.json name."""
    ids = [config.get_text_config().eos_token_id]
    generation = model_path / "generation_config.json"
    if generation.is_file():
        ids.append(json.loads(generation.read_text()).get("eos_token_id"))
    flat = [token for entry in ids for token in (entry if isinstance(entry, list) else [entry])]
    return frozenset(token for token in flat if token is not None)
