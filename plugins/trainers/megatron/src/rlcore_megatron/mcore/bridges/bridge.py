"""How a model family plugs into the trainer: `ModelBridge`, and `MBridge`, a base over mbridge."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from huggingface_hub.errors import StrictDataclassError
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig

from rlcore import Config, ConfigError, ModelError, fp8_block
from rlcore_megatron.config import DIVIDED, MTP, undivided
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.bridges import mtp, transfer
from rlcore_megatron.mcore.bridges.files import SafetensorsDir
from rlcore_megatron.mcore.bridges.int4 import is_int4
from rlcore_megatron.mcore.bridges.names import Names
from rlcore_megatron.mcore.bridges.nesting import Nesting
from rlcore_megatron.mcore.bridges.transfer import Read, Write
from rlcore_megatron.mcore.layers import heads
from rlcore_megatron.mcore.layers.backend import (
    Linears,
    Mixer,
    Mixture,
    block_spec,
    layer_spec,
    self_attention,
)
from rlcore_megatron.mcore.layers.rotary import Rotary
from rlcore_megatron.pipeline import flag
from rlcore_toolkit import current_device

VALUE_HEAD_NAME = "score.weight"
"""How transformers names the head of a model with one output a token."""


class ModelBridge(Protocol):
    """One Hugging Face model as megatron-core holds it, under the parallel layout of this process.

    Its factory is called as `factory(config, path=…, dtype=…, settings=…, value_head=…)`: the plugin's
    Config, a Hugging Face directory, the parameters' torch dtype, fields of megatron's TransformerConfig, and
    whether a scalar head replaces the one that makes logits. A factory may have a function `refuse(path)`,
    which raises ModelError, before any process is started, for a config that the bridge does not support.
    """

    hf_config: PretrainedConfig
    config: TransformerConfig

    def build(self) -> list[nn.Module]:
        """The chunks of this pipeline stage, on the device of the process, with random weights."""

    def load(self, chunks: Sequence[nn.Module], write: Write) -> None:
        """Hand each tensor of `chunks` what the directory's safetensors have for it.

        `write(tensor, values)`; where a parameter is filled in pieces (views), they come one after another.
        ModelError where a weight is missing or misshapen.
        """

    def export(self, chunks: Sequence[nn.Module], read: Read) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors under Hugging Face names, as `rlcore_megatron.mcore.role.weights.hf_tensors` says.

        `read(tensor)`: the values of a tensor of `chunks`, asked for when its turn comes.
        """

    def numbered(self, chunk: nn.Module) -> Mapping[str, str]:
        """Name in `chunk` → the same with its layer numbered through the whole model."""


class MBridge:
    """A dense decoder through mbridge's name maps and weight layouts.

    A family says what differs (`names`, `fields`), and refuses what would be silently wrong (`check`). Right
    in mbridge, and used: the mapping of the config, of the names, of QKV and gate/up. Mended here: rotary
    scaling (dropped or replaced there), sequence parallelism (forced there), tied embeddings (which leak into
    the next model there), vocabulary padding, and loading and export without a collective or a pickled object
    for each tensor.
    """

    names: ClassVar[type[Any]] = Names
    """mbridge's class with the family's name maps and weight layouts."""
    rope_types: ClassVar[frozenset[str]] = frozenset({"default", "linear", "llama3", "yarn"})
    interleaved: ClassVar[bool] = False
    """Whether dimensions 2i and 2i + 1 of a head are turned together, else i and i + D/2."""
    activation: ClassVar[tuple[str, str]] = ("hidden_act", "silu")
    """The field of config.json that names the MLP's activation, and the one that the family computes."""
    partial_rotary: ClassVar[bool] = False
    """Whether the family may turn a part of each head only."""
    carried: ClassVar[tuple[str, ...]] = ()
    """Begins the names of what checkpoints may hold beside the decoder, and what leaves as it came."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """What `layer_types` may name; empty: the family does not read it."""
    windows: ClassVar[bool] = False
    """Whether the family may have layers that see a window of the sequence."""
    quantizations: ClassVar[frozenset[str]] = frozenset()
    """Methods of `quantization_config` that the names can read, beside FP8 blocks and INT4 groups."""
    mtp_form: ClassVar[mtp.MtpForm | None] = None
    """How checkpoints name a layer for multi-token prediction, where they may hold one."""

    def __init__(
        self,
        config: Config,
        *,
        path: str,
        dtype: torch.dtype,
        settings: Mapping[str, Any],
        value_head: bool = False,
    ) -> None:
        self.value_head = value_head
        self._read(path)
        self.tied = bool(self.hf_config.tie_word_embeddings) and not value_head
        self.vocab_size = int(self.hf_config.vocab_size)
        self.mtp_layers = int(settings.get(MTP) or 0)
        self._check_mtp()
        form, layers = self._mtp_form, int(self.hf_config.num_hidden_layers)
        self.copies = form.hf_copies(layers, tied=self.tied) if form else {}
        self._inner = self._make_inner(dtype, {key: value for key, value in settings.items() if key != MTP})
        self.config: TransformerConfig = self._inner.config
        self.padded_vocab_size = int(self._inner.padded_vocab_size)

    def _read(self, path: str) -> None:
        self.path = Path(path)
        self.hf_config = parsed_config(self.path)
        self.check(self.hf_config)

    @classmethod
    def refuse(cls, path: str) -> None:
        """What `check` says of the directory `path`, before there is a layout or a process that it is for."""
        cls.__new__(cls)._read(path)

    def fields(self) -> Mapping[str, Any]:
        """Fields of the family's TransformerConfig, beside those that mbridge reads in config.json."""
        return {}

    def check(self, hf_config: PretrainedConfig) -> None:
        """Refuse (ModelError) the variants of the family that would not be computed rightly."""
        unknown = [kind for kind in hf_config.layer_types if kind not in self.kinds] if self.kinds else []
        if unknown:
            raise ModelError(
                f"{self.path}: layer_types has {unknown[0]!r}, expected {' or '.join(map(repr, self.kinds))}."
            )
        for rope in self.ropes(hf_config):
            kind = rope.get("rope_type")
            if kind is None:
                raise ModelError(
                    f"{self.path}: rope_parameters for each kind of layer ({', '.join(map(repr, rope))}) are "
                    "not supported for this family; give one rope_type and rope_theta."
                )
            if kind not in self.rope_types:
                raise ModelError(
                    f"{self.path}: rope_type {kind!r} is not supported; {sorted(self.rope_types)} are."
                )
            if not self.partial_rotary and rope.get("partial_rotary_factor", 1.0) != 1.0:
                raise ModelError(f"{self.path}: partial_rotary_factor is not supported for this family.")
        field, activation = self.activation
        if (found := getattr(hf_config, field)) != activation:
            raise ModelError(f"{self.path}: {field} {found!r} is not supported; {activation!r} is.")
        if _slides(hf_config) and not self.windows:
            raise ModelError(
                f"{self.path}: use_sliding_window is not supported: every layer must see the whole sequence."
            )
        if _slides(hf_config) and not hf_config.sliding_window:
            raise ModelError(f"{self.path}: its layer_types has windows, but it has no sliding_window.")
        quantization = getattr(hf_config, "quantization_config", None)
        method = (quantization or {}).get("quant_method")
        is_read = method in self.quantizations or is_int4(quantization) or fp8_block(quantization)
        if quantization and not is_read:
            raise ModelError(
                f"{self.path}: its weights are quantized by {method!r}; give the "
                "unquantized model, one in FP8 with a weight_block_size, or in INT4 with symmetric groups."
            )

    def ropes(self, hf_config: PretrainedConfig) -> Sequence[Mapping[str, Any]]:
        """The parameters of each kind of rotary positions."""
        return [hf_config.rope_parameters]

    def linears(self) -> Linears:
        """The classes of the linear modules of a layer."""
        return Linears()

    def layers(self, vp_stage: int | None) -> TransformerBlockSubmodules:
        """The layers of one chunk of this pipeline stage.

        `vp_stage`: the chunk's place in the stage, None without a virtual pipeline.
        """
        return block_spec(self.config, self.mixer, self.linears(), self.mixture(), vp_stage)

    def mixer(self, layer: int) -> Mixer:
        """What mixes the tokens of the layer of this number in the model, from 0."""
        return self_attention(self.config, self.shared_rotary, self.linears())

    def mixture(self) -> Mixture | None:
        """What some layers have in the place of an MLP; None: every layer has one."""
        return None

    def mtp_layer(self) -> ModuleSpec:
        """Attention and MLP of the layer for multi-token prediction, one more than `num_hidden_layers`."""
        return layer_spec(self.mixer(int(self.hf_config.num_hidden_layers)), self.linears(), self.mixture())

    def rotary(self) -> Rotary:
        """The rotary positions of every layer."""
        return Rotary.of(self.hf_config, current_device(), interleaved=self.interleaved)

    @cached_property
    def shared_rotary(self) -> Rotary:
        """`rotary`, one for all layers: they share the table that it makes of a pack."""
        return self.rotary()

    def source(self) -> SafetensorsDir:
        """The files of the directory."""
        return SafetensorsDir(self.path)

    @cached_property
    def nesting(self) -> Nesting:
        """What the files hold beside the decoder, and how they name it."""
        if not self.carried:
            return Nesting()
        trained = self._mtp_form.own if self._mtp_form else None
        starts = tuple(start for start in self.carried if start != trained)
        return Nesting.of(self.source().files.names, starts)

    @property
    def _mtp_form(self) -> mtp.MtpForm | None:
        """None where no layer for multi-token prediction is trained."""
        return self.mtp_form if self.mtp_layers else None

    def in_files(self, name: str) -> str:
        """The name in the directory's files of the weight that transformers' decoder calls `name`.

        A layer for multi-token prediction is one more of the decoder's.
        """
        form = self._mtp_form
        return self.nesting.in_files(
            form.in_files(name, int(self.hf_config.num_hidden_layers)) if form else name
        )

    def build(self) -> list[nn.Module]:
        return [self._chunk(place) for place in range(parallel.virtual_size())]

    def _chunk(self, place: int) -> nn.Module:
        vp_stage = place if parallel.virtual_size() > 1 else None
        is_last = parallel.is_last_stage(place)
        model = GPTModel(
            config=self.config,
            transformer_layer_spec=self.layers(vp_stage),
            vocab_size=self.padded_vocab_size,
            max_sequence_length=self.hf_config.max_position_embeddings,
            pre_process=parallel.is_first_stage(place),
            post_process=is_last,
            share_embeddings_and_output_weights=self.tied,
            position_embedding_type="none",  # rotary positions belong to the core attention
            vp_stage=vp_stage,
        )
        if is_last:
            if self.value_head:
                model.output_layer = heads.ValueHead(self.config)
            else:
                model.output_layer = heads.VocabularyHead(model.output_layer, self.vocab_size)
            if self.mtp_layers:
                mtp.add_layer(model, self.mtp_layer(), self.config, vp_stage)
        assert isinstance(model, nn.Module)
        return model

    def load(self, chunks: Sequence[nn.Module], write: Write) -> None:
        transfer.load(self, self._inner, chunks, write)

    def export(self, chunks: Sequence[nn.Module], read: Read) -> Iterator[tuple[str, Tensor]]:
        return transfer.export(self, self._inner, chunks, read)

    def hf_names(self, name: str) -> list[str]:
        """The weights in a directory that megatron's weight `name` joins; experts have a number behind it."""
        return [
            self.nesting.in_files(weight) for weight in self._inner._weight_name_mapping_mcore_to_hf(name)
        ]

    def joined(self, name: str, weights: list[Tensor]) -> Tensor:
        """megatron's weight `name` for all tensor-parallel ranks, of the `weights` of `hf_names`."""
        whole: Tensor = self._inner._weight_to_mcore_format(name, weights)
        return whole

    def own_part(self, name: str, weight: Tensor, weights: list[Tensor]) -> Tensor:
        """This rank's part of it, which has the shape of `weight`. ModelError: they do not fit."""
        return transfer.own_part(self, self._inner, name, weight, weights)

    def numbered(self, chunk: nn.Module) -> Mapping[str, str]:
        layers = int(self.hf_config.num_hidden_layers)
        names = self._inner._weight_name_mapping_mcore_local_to_global(chunk, consider_ep=False)
        return {local: mtp.numbered(name, layers) for local, name in names.items()}

    def _make_inner(self, dtype: torch.dtype, settings: Mapping[str, Any]) -> Any:
        hf_config = copy.deepcopy(self.hf_config)
        if getattr(hf_config, "head_dim", None) is None:  # mbridge takes a None for a size
            hf_config.head_dim = hf_config.hidden_size // hf_config.num_attention_heads
        step = parallel.tensor_size()
        # config.json may leave them to transformers' defaults
        for complaint in undivided({name: getattr(hf_config, name, None) for name in DIVIDED}, step):
            raise ConfigError(complaint)
        inner_class = _with_settings(self.names, {**self.fields(), **DEFAULTS, **settings})
        try:
            inner = inner_class(hf_config, dtype=dtype, make_vocab_size_divisible_by=step)
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(
                f"megatron-core refuses the --megatron settings of {self.path}: {error}"
            ) from error
        if self.value_head:
            inner._DIRECT_MAPPING["output_layer.weight"] = VALUE_HEAD_NAME
        elif self.tied:
            embedding = inner._DIRECT_MAPPING["embedding.word_embeddings.weight"]
            inner._DIRECT_MAPPING["output_layer.weight"] = embedding
        if self._mtp_form:
            inner._DIRECT_MAPPING.update(self._mtp_form.hf_names(int(hf_config.num_hidden_layers)))
        inner.vocab_size = self.vocab_size
        inner.padded_vocab_size = -(-self.vocab_size // step) * step
        return inner

    def _check_mtp(self) -> None:
        """Refuse (ModelError) a layer for multi-token prediction that the bridge lacks."""
        if self.mtp_layers and self.mtp_form is None:
            raise ModelError(
                f"{self.path}: the bridge of {self.hf_config.model_type!r} has no layer for multi-token "
                f"prediction; leave out {flag(MTP)}."
            )


DEFAULTS: Mapping[str, Any] = {
    "sequence_parallel": False,  # a choice of the user; mbridge turns it on with tensor parallelism
    "attention_dropout": 0.0,  # old and new log-probs must be of one model
    "hidden_dropout": 0.0,
    "masked_softmax_fusion": False,  # kernels of apex
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "cuda_graph_scope": [],  # the default is deprecated, and megatron warns of it
}
"""Fields of TransformerConfig that differ from mbridge's or megatron's defaults; settings override them."""


def _with_settings(base: Any, settings: Mapping[str, Any]) -> Any:
    """mbridge's class `base` with `settings` above its own, and with a name map that is not shared.

    mbridge writes the tied output layer into a map of the class, where the next model would find it.
    """

    def build_base_config(self: Any, **of_family: Any) -> Any:
        return base._build_base_config(self, **{**of_family, **settings})

    body = {"_build_base_config": build_base_config, "_DIRECT_MAPPING": dict(base._DIRECT_MAPPING)}
    return type(base.__name__, (base,), body)


def parsed_config(path: Path) -> PretrainedConfig:
    """The decoder's config in config.json, as transformers takes it.

    ModelError where there is none, or it does not take it.
    """
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} is no Hugging Face model directory: it has no config.json.")
    try:
        config = AutoConfig.from_pretrained(path)
    except (ValueError, KeyError, OSError, StrictDataclassError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"{path / 'config.json'} cannot be read: {reason}") from error
    assert isinstance(config, PretrainedConfig)
    text = config.get_text_config()
    if hasattr(config, "quantization_config"):
        text.quantization_config = config.quantization_config  # it is of the whole model
    return text


def _slides(hf_config: PretrainedConfig) -> bool:
    """Whether a layer sees a window of the sequence alone."""
    layers = getattr(hf_config, "layer_types", None)
    if layers:
        return "sliding_attention" in layers
    window = getattr(hf_config, "sliding_window", None)
    return bool(getattr(hf_config, "use_sliding_window", window))  # the flag switches a window off
