"""One model under the parallel layout of this process, with the weights of its Hugging Face directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from transformers import PretrainedConfig

from rlcore import AdapterSpec, ModelSpec, torch_dtype
from rlcore_megatron import fields
from rlcore_megatron.config import MTP
from rlcore_megatron.mcore.bridges.adapters import attach
from rlcore_megatron.mcore.bridges.bridge import ModelBridge
from rlcore_megatron.mcore.bridges.transfer import copy_into
from rlcore_megatron.mcore.checkpoint.saving import load_weights
from rlcore_megatron.mcore.layers.adapter import AdapterSet
from rlcore_megatron.mcore.layers.indexer import freeze_indexers


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model: its chunks on this pipeline stage (one, without a virtual pipeline), and what describes it.

    `adapters`: those of its linear layers, which then are all that is trained; None: it has none.
    """

    chunks: list[nn.Module]
    config: TransformerConfig
    bridge: ModelBridge
    hf_config: PretrainedConfig
    adapters: AdapterSet | None = None

    def forward(self, tokens: Tensor, position_ids: Tensor, packed_seq_params: PackedSeqParams) -> Tensor:
        """tokens, position_ids int64 [1, T] → vocab-parallel logits [1, T, V / TP] on the last stage.

        A value model gives fp32 values [1, T, 1]; an earlier stage its hidden states, for the next one. The
        sequences of the pack fill it: padding at its end is a sequence of its own (or part of the last one).
        Under sequence parallelism T is a multiple of the tensor-parallel size. Columns of the vocabulary's
        padding hold `rlcore_megatron.mcore.layers.heads.NEVER`.
        """
        out = self.chunks[0](tokens, position_ids, None, packed_seq_params=packed_seq_params)
        assert isinstance(out, Tensor)
        return out


def build_model(
    spec: ModelSpec,
    *,
    trainable: bool = True,
    value_head: bool = False,
    adapter: AdapterSpec | None = None,
) -> Built:
    """Build `spec` after `rlcore_megatron.mcore.parallel.start`, on the device of the process.

    A layer for multi-token prediction, where the fields ask for one, is the trainable policy's alone.
    `trainable=False`: no parameter takes a gradient, and the model is in evaluation mode.
    `value_head=True`: a scalar head in place of the logits, zero unless the directory holds one
    (`score.weight`). `adapter`: what is trained in place of the model's weights.
    """
    settings = fields.split(fields.check_fields(spec.fields)).transformer
    if value_head or not trainable:
        settings.pop(MTP, None)  # the draft is the policy's
    bridge: ModelBridge = spec.bridge.build(
        path=spec.path, dtype=torch_dtype(spec.dtype), settings=settings, value_head=value_head
    )
    chunks = bridge.build()
    if spec.weights is None:
        bridge.load(chunks, copy_into)
    else:
        load_weights(Path(spec.weights), chunks)
    for chunk in chunks:
        chunk.train(trainable).requires_grad_(trainable and adapter is None)
        freeze_indexers(chunk)
    adapters = None if adapter is None else _adapted(bridge, chunks, adapter)
    return Built(
        chunks=chunks, config=bridge.config, bridge=bridge, hf_config=bridge.hf_config, adapters=adapters
    )


def _adapted(bridge: ModelBridge, chunks: Sequence[Any], adapter: AdapterSpec) -> AdapterSet:
    """The adapters that `chunks` now have."""
    for chunk in chunks:
        if chunk.pre_process:
            chunk.embedding.register_forward_hook(_with_gradient)
    return attach(bridge, chunks, adapter)


def _with_gradient(module: nn.Module, given: Any, output: Tensor) -> Tensor:
    """A layer is computed again in the backward pass only if its input has a gradient."""
    return output.requires_grad_() if torch.is_grad_enabled() else output
