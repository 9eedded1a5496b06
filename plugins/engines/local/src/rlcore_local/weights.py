"""The weights of the served model: loaded, replaced in place, and summed up, by their Hugging Face names."""

import copy
import json
import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlcore import (
    FP8_SCALE_SUFFIX,
    DeltaError,
    ModelError,
    checksum,
    fp8_block,
    policy_of,
    policy_tensor,
)
from rlcore_local.adapter import HeldAdapter
from rlcore_local.choices import Choices
from rlcore_local.decoder import Decoder
from rlcore_local.files import Files
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
from rlcore_local.policies import PolicyDecoder
from rlcore_local.requests import RequestError
from rlcore_toolkit import Offload, WeightNames, adapter_place, apply_delta, by_rows, copy_into

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float8_e4m3fn")
}
"""The names of dtypes on the wire."""


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class SharedTensor(NamedTuple):
    """Where one tensor lies in a shared file: C order, little-endian, `offset` in bytes from the start."""

    name: str
    dtype: str
    shape: list[int]
    offset: Annotated[int, Field(ge=0)]


class Weights:
    """A model on `device`, and its decoder.

    `path`: "lean" or "generic". `context_length`: as asked, or the model's own. `choices`: what its
    layers choose for each token.
    """

    def __init__(
        self, model_path: Path, dtype: torch.dtype, context_length: int | None, device: str = "cpu"
    ) -> None:
        self.device = device_named(device)
        model, self._fp8 = load_model(model_path, dtype)
        self.context_length = context_length_of(model.config, context_length)
        self.path = "lean" if is_lean(model.config) else "generic"
        self.decoder = PolicyDecoder(self._begin(model))
        self.choices = Choices(self.model)
        in_files = frozenset(Files(model_path, AutoModelForCausalLM, self.model.config).names())
        self._names = WeightNames(self.model, in_files, self._parameters)
        self._writing = self._names.writing(self._parameters)
        disk_names = {
            name for name, _ in self._writing.tensors(lambda name: self._parameters[name].to("meta"))
        }
        self._is_converted = disk_names != self._parameters.keys()
        self._beside = {name for name in in_files if name.removesuffix(FP8_SCALE_SUFFIX) not in disk_names}

    def _begin(self, model: PreTrainedModel) -> Decoder:
        """Take `model`, without an adapter; its decoder."""
        place(model, self.device)
        self.model, self._offload, self._adapter = model, Offload(), HeldAdapter()
        self._tied = set(model.all_tied_weights_keys)
        self._beyond: dict[str, Tensor] = {}
        """What the files have beside the decoder (a vision tower, layers for multi-token prediction), as it
        was published last: held, and not used."""
        self._twins: dict[str, Weights] = {}
        """By policy, the model with its adapter; that of the run's own policy is this one."""
        is_lean = self.path == "lean"
        decoder = LeanDecoder(model, self.context_length) if is_lean else GenericDecoder(model)
        state = model.state_dict()  # after the decoder, which may have joined matrices
        self._parameters = {name: tensor for name, tensor in state.items() if name not in self._tied}
        return decoder

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names that a request may give; the empty one is of the run's own policy."""
        return ("", *self._twins)

    def _twin(self, policy: str) -> "Weights":
        """The model of another policy; at first with the weights that were loaded."""
        if policy not in self._twins:
            twin = self._twins[policy] = copy.copy(self)
            decoder = twin._begin(self._loaded({**self._used(), **self._adapter.base}))
            twin.decoder = PolicyDecoder(decoder)
            self.decoder.decoders[policy] = decoder
        return self._twins[policy]

    def tensors(self) -> dict[str, Tensor]:
        """All weights by the names and shapes that they have on disk; a tied output matrix is left out.

        Those in FP8 come with their scales. Where a family is held otherwise in memory (fused experts), some
        are copies. Of an adapter that was published, its tensors alone: the base was never published.
        """
        if self._adapter.tensors:
            twins = self._twins.items()
            others = {policy_tensor(name, key): one for name, twin in twins for key, one in twin.held.items()}
            return {**self._adapter.tensors, **others}
        return {**self._used(), **self._fp8.tensors, **self._beyond}

    @property
    def held(self) -> Mapping[str, Tensor]:
        """The tensors of the adapter of this policy."""
        return self._adapter.tensors

    def _used(self) -> dict[str, Tensor]:
        if not self._is_converted:
            return self._parameters
        # On the CPU, for a conversion copies what it joins, and a trainer may need the GPU.
        return dict(self._writing.tensors(lambda name: self._parameters[name].cpu()))

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        return len(weight)

    def release(self) -> None:
        """Move the weights from a GPU to host memory, until `reclaim`."""
        self._offload.move([*self._parameters.values(), *self._adapter.base.values()])
        for twin in self._twins.values():
            twin.release()

    def reclaim(self) -> None:
        """Undo `release`."""
        self._offload.restore()
        for twin in self._twins.values():
            twin.reclaim()

    def update_from_disk(self, model_path: Path) -> None:
        """Replace all weights by those of another directory. `RequestError`: nothing was changed."""
        if not (model_path / "config.json").is_file():
            raise RequestError(f"model_path: {model_path} is not a model directory (it has no config.json)")
        try:
            files = Files(model_path, AutoModelForCausalLM, self.model.config)
            self._replace(dict(files.tensors()), complete=True)
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
        """Check names and shapes of all, then copy; values are cast to the engine's dtype.

        Each policy's tensors by themselves.
        """
        self._require_here()
        by_policy: dict[str, dict[str, Tensor]] = {}
        for name, tensor in new.items():
            policy, own = policy_of(name)
            by_policy.setdefault(policy, {})[own] = tensor
        new = by_policy.pop("", {})
        for policy, tensors in by_policy.items():
            self._twin(policy)._replace(tensors, complete=False)
        if by_policy and not new:
            return
        held = self._used()
        config = self.model.config
        adapter = {name: tensor for name, tensor in new.items() if adapter_place(name)[0]}
        new = {name: tensor for name, tensor in new.items() if name not in adapter}
        brings_whole = bool(new)
        if brings_whole and self._twins:
            raise RequestError(f"whole weights cannot follow the adapters of {', '.join(self._twins)}")
        merged = self._merged(adapter, held)
        complete = complete and not adapter
        beyond = {
            name: tensor for name, tensor in new.items() if name in self._beside or _is_beyond(name, config)
        }
        small, new = self._fp8.split({name: tensor for name, tensor in new.items() if name not in beyond})
        if complete and (lacking := sorted(self._fp8.tensors.keys() - small.keys())):
            raise RequestError(f"{len(lacking)} tensors are missing, among them {lacking[0]!r}")
        new |= self._fp8.stand_for(small)
        new = {name: tensor for name, tensor in new.items() if name not in self._tied} | merged
        if unknown := sorted(new.keys() - held.keys()):
            raise RequestError(f"{len(unknown)} tensors are not of this model, among them {unknown[0]!r}")
        if complete and (missing := sorted(held.keys() - new.keys())):
            raise RequestError(f"{len(missing)} tensors are missing, among them {missing[0]!r}")
        for name, tensor in new.items():
            if tensor.shape != held[name].shape:
                was, wanted = list(tensor.shape), list(held[name].shape)
                raise RequestError(f"{name}: the shape is {was}, but the model has {wanted}")
        base = {name: held[name].clone() for name in merged if name not in self._adapter.base}
        source = self._converted({**held, **new}) if self._is_converted else new
        for name, tensor in source.items():
            copy_into(self._parameters[name], tensor)
        self._fp8.keep(small)
        if adapter:
            self._adapter.keep(adapter, base)
        elif brings_whole:  # a delta may bring nothing
            self._adapter.forget()
        # copies: what comes may be a file that is mapped
        self._beyond |= {name: tensor.clone() for name, tensor in beyond.items()}
        self.decoder.refresh()

    def _merged(self, adapter: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole weights by new tensors of the adapter. `RequestError`."""
        merged = self._adapter.merged(adapter, held)
        if small := sorted(merged.keys() & self._fp8.tensors.keys()):
            raise RequestError(f"{small[0]}: it is FP8, to which no adapter can be added")
        return merged

    def _converted(self, disk: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as on disk, in the form that the model has in memory."""
        return dict(self._names.tensors(lambda name, _: disk[name]))

    def _loaded(self, disk: Mapping[str, Tensor]) -> PreTrainedModel:
        """A model on the CPU of tensors as on disk."""
        with torch.inference_mode(False):
            # Parameters cannot be made of tensors that were made in inference mode; their clones are not.
            clones = {name: tensor.to("cpu", copy=True) for name, tensor in disk.items()}
            model = load_tensors(type(self.model), self.model.config, clones, self.model.dtype)
            return _all_as(model, self.model.dtype)

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
    model, held = load_full(AutoModelForCausalLM, model_path, config, dtype)
    return _all_as(model, dtype), held


def _all_as(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    for parameter in model.parameters():
        # transformers keeps routers in fp32, which a trainer has, and publishes, like all other parameters
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(dtype)
    return model


def load_full(
    models: Any, model_path: Path, config: Any, dtype: torch.dtype
) -> tuple[PreTrainedModel, Fp8Held]:
    """The model of `config` with full weights, as `load_model`. `models`: as for `load_weights`."""
    block = fp8_block(getattr(config, "quantization_config", None))
    try:
        files = Files(model_path, models, config)
        if block is None and not files.has_joined:
            return load_weights(models, model_path, config, dtype), Fp8Held(None, {})
        tensors = {name: tensor for name, tensor in files.tensors() if not _is_beyond(name, config)}
        held = Fp8Held(None, {})
        if block is not None:
            del config.quantization_config  # transformers would compute in FP8, for which it needs a GPU
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
    is_causal = type(config) in AutoModelForCausalLM._model_mapping
    return is_causal and (is_generic(config) or is_lean(config))


def _view(mapped: mmap.mmap, entry: SharedTensor) -> Tensor:
    """A tensor over mapped bytes, without a copy."""
    if entry.dtype not in DTYPES:
        raise RequestError(f"layout: {entry.name} has dtype {entry.dtype!r}, known are {', '.join(DTYPES)}")
    dtype = DTYPES[entry.dtype]
    count = math.prod(entry.shape)
    if entry.offset + count * dtype.itemsize > len(mapped):
        raise RequestError(f"layout: {entry.name} ends after the file does ({len(mapped)} bytes)")
    flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.offset)
    return flat.reshape(entry.shape)


def stop_token_ids(model_path: Path, config: Any) -> frozenset[int]:
    """The end tokens that config.json and generation_config.json name."""
    ids = [config.get_text_config().eos_token_id]
    generation = model_path / "generation_config.json"
    if generation.is_file():
        ids.append(json.loads(generation.read_text()).get("eos_token_id"))
    flat = [token for entry in ids for token in (entry if isinstance(entry, list) else [entry])]
    return frozenset(token for token in flat if token is not None)
