"""Multi-token prediction: the layer that drafts for speculative decoding, trained beside the policy.

DeepSeek-V3's (https://arxiv.org/abs/2412.19437, eq. 21 to 25), with one layer. Of token i it reads the
model's last hidden state h_i, and the embedding of the token after it; it predicts the one after that:

    h'_i = layer(M [norm(Emb(t_i+1)); norm(h_i)])     p(t_i+2) = softmax(Head(norm(h'_i)))

and the loss is factor / N · Σ -log p(t) over the N tokens of the whole mini-batch that it learns. As in
slime, hidden states, embedding and head have no gradient of it: it is the layer's alone, and the policy is
the same with and without it. megatron's own forward averages over a micro-batch, and knows no packs with
shared prompts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.random import checkpoint
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from rlcore import Part, TrainBatch
from rlcore_megatron.config import mtp_layers
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.norms import Norm
from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.packing import PackAhead, learned_ahead
from rlcore_toolkit import HiddenRows, SafetensorsFiles, current_device, vocab_parallel_log_probs

PREFIX = "mtp."
"""Begins the names of the layer's weights in its chunk."""
LAYER = f"{PREFIX}layers.0."
_INNER = f"{LAYER}transformer_layer."


def add_layer(chunk: GPTModel, layer: ModuleSpec, config: TransformerConfig, vp_stage: int | None) -> None:
    """Give the last chunk of a model the layer, whose attention and MLP are those of `layer`."""
    of_layer = MultiTokenPredictionLayerSubmodules(
        enorm=Norm, hnorm=Norm, eh_proj=ColumnParallelLinear, transformer_layer=layer, layer_norm=Norm
    )
    specs = [ModuleSpec(module=MultiTokenPredictionLayer, submodules=of_layer)]
    spec = MultiTokenPredictionBlockSubmodules(layer_specs=specs)
    chunk.mtp = MultiTokenPredictionBlock(config, spec, vp_stage)
    for parameter in chunk.mtp.parameters():
        # megatron leaves such parameters out of the gradient's norm, which then is the policy's alone
        parameter.shared = True


@dataclass(frozen=True, kw_only=True)
class MtpForm:
    """How the checkpoints of a family name the layer; `{layers}` stands for the number of the model's layers.

    `own`: begins the names of what it has beside attention and MLP: two norms and the matrix that joins what
    they give, and the last norm. `inner`: begins those of attention and MLP. `copies`: of embedding and head.
    """

    own: str
    inner: str
    embedding_norm: str
    hidden_norm: str
    joint: str
    last_norm: str
    copies: tuple[str, str] | None = None

    def hf_names(self, layers: int) -> Mapping[str, str]:
        """megatron's name → Hugging Face's, of what the layer has beside attention and MLP."""
        theirs = {
            "enorm": self.embedding_norm,
            "hnorm": self.hidden_norm,
            "eh_proj": self.joint,
            "final_layernorm": self.last_norm,
        }
        start = self.own.format(layers=layers)
        return {f"{LAYER}{ours}.weight": f"{start}{name}.weight" for ours, name in theirs.items()}

    def hf_copies(self, layers: int, *, tied: bool) -> Mapping[str, Sequence[str]]:
        """Name in a checkpoint → the names under which it holds the same matrix for the layer."""
        if self.copies is None:
            return {}
        start = self.own.format(layers=layers)
        embedding, head = (f"{start}{name}.weight" for name in self.copies)
        if tied:
            return {"model.embed_tokens.weight": (embedding, head)}
        return {"model.embed_tokens.weight": (embedding,), "lm_head.weight": (head,)}

    def in_files(self, name: str, layers: int) -> str:
        """The name of a weight of attention and MLP, which `numbered` makes one of a further layer."""
        start = DEEPSEEK.inner.format(layers=layers)
        return self.inner.format(layers=layers) + name.removeprefix(start) if name.startswith(start) else name


DEEPSEEK = MtpForm(
    own="model.layers.{layers}.",
    inner="model.layers.{layers}.",
    embedding_norm="enorm",
    hidden_norm="hnorm",
    joint="eh_proj",
    last_norm="shared_head.norm",
    copies=("embed_tokens", "shared_head.head"),
)
"""One more layer behind those of the decoder."""
QWEN = MtpForm(
    own="mtp.",
    inner="mtp.layers.0.",
    embedding_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    joint="fc",
    last_norm="norm",
)
"""Beside the decoder (Qwen3-Next, Qwen3.5)."""


def numbered(name: str, layers: int) -> str:
    """Attention and MLP of the layer as those of one more layer of the decoder; other names as they are."""
    return name.replace(_INNER, f"decoder.layers.{layers}.")


def policy_tensors(chunk: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers without those of the layer, which a frozen role does not have."""
    named = (*chunk.named_parameters(), *chunk.named_buffers())  # a router's bias is a buffer
    yield from (tensor for name, tensor in named if not name.startswith(PREFIX))


def is_in_directory(path: Path, bridge: Part) -> bool:
    """Whether the Hugging Face directory `path` has the layer, and its bridge takes it."""
    config = json.loads((path / "config.json").read_text())
    config = {**config.get("text_config", {}), **config}
    form: MtpForm | None = getattr(bridge.load(), "mtp_form", None)
    if mtp_layers(config) != 1 or form is None:
        return False
    names = form.hf_names(int(config["num_hidden_layers"])).values()
    files = SafetensorsFiles.of(path)
    return all(name in files for name in names)


class MtpLoss:
    """The loss of the layer on the last stage of the pipeline; the other ranks take part in `start`."""

    def __init__(
        self, chunks: Sequence[Any], config: TransformerConfig, vocab_size: int, factor: float
    ) -> None:
        """`chunks`: of this stage; the last stage's have the layer. `factor`: what multiplies the mean."""
        self._first, self._last = chunks[0], chunks[-1]
        self._config, self._vocab_size, self._factor = config, vocab_size, factor
        self._scale = 0.0
        self._hidden: Tensor | None = None
        self._embedding: Tensor | None = None
        self.is_here = parallel.is_last_stage()
        if not self.is_here:
            return
        self._layer = self._last.mtp.layers[0]
        self._last.output_layer.register_forward_pre_hook(self._keep, prepend=True)

    def start(self, batch: TrainBatch) -> None:
        """Before a mini-batch, of which `batch` is this rank's share. Collective."""
        count = learned_ahead(batch).sum().to(current_device())
        if parallel.data_size() > 1:
            dist.all_reduce(count, group=parallel.data_group())
        self._scale = 1.0 / max(1, int(count))
        self._embedding = self._table()

    def stop(self) -> None:
        """Behind a mini-batch: the copy of the embedding goes."""
        self._embedding = None

    def __call__(self, ahead: PackAhead) -> tuple[Tensor, Tensor]:
        """What is differentiated, and its share of the mean, of the micro-batch whose forward was last."""
        hidden = self._predicted(ahead)[:, 0]
        rows, targets = ahead.rows, ahead.targets
        if not rows.numel():  # a graph all the same: every parameter gets a gradient in each micro-batch
            rows, targets = rows.new_zeros(1), ahead.tokens[:1]
        log_probs, _ = vocab_parallel_log_probs(
            HiddenRows(hidden=hidden.index_select(0, rows), matrix=self._last.output_layer.matrix.detach()),
            targets,
            vocab_size=self._vocab_size,
            group=parallel.tensor_group(),
        )
        loss = -log_probs[: ahead.rows.numel()].sum() * self._scale
        share = loss.detach().clone()
        if parallel.context_size() > 1:
            dist.all_reduce(share, group=parallel.context_group())
        return self._factor * loss, share

    def has_finite_gradients(self) -> bool:
        """Whether every gradient of the layer is finite, on all ranks. Collective over all of them."""
        parameters = self._last.mtp.parameters() if self.is_here else ()
        learned = [vars(one)["main_grad"] for one in parameters if one.requires_grad]  # an indexer may not be
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in learned)
        if dist.get_world_size() == 1:
            return finite
        everywhere = torch.tensor(int(finite), device=current_device())
        dist.all_reduce(everywhere, dist.ReduceOp.MIN)
        return bool(everywhere)

    def _predicted(self, ahead: PackAhead) -> Tensor:
        """[T', 1, H] on every tensor-parallel rank; the gradients that the ranks give it are summed."""
        with torch.no_grad():
            hidden, embedded = self._inputs(ahead)

        def run(hidden: Tensor, embedded: Tensor) -> Tensor:
            out: Tensor = self._layer._proj_and_transformer_layer(
                hidden_states=hidden, decoder_input=embedded, packed_seq_params=ahead.params
            )
            return out

        if self._config.recompute_granularity == "full":
            # what is computed again has a gradient only where an input has one
            out: Tensor = checkpoint(run, False, hidden.requires_grad_(), embedded)
        else:
            out = run(hidden, embedded)
        if self._config.sequence_parallel:
            return gather_from_sequence_parallel_region(out)  # type: ignore[no-any-return] # megatron is untyped
        return copy_to_tensor_model_parallel_region(out)  # type: ignore[no-any-return] # as above

    def _inputs(self, ahead: PackAhead) -> tuple[Tensor, Tensor]:
        """Hidden states and embeddings [T', 1, H], or the part of a sequence-parallel rank."""
        assert self._hidden is not None, "kept by the forward"
        hidden, self._hidden = self._hidden, None
        if self._config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden)
        context = Share.of_process(len(hidden) * parallel.context_size())
        if context is not None:
            hidden = context.gather(hidden)
        hidden = hidden.index_select(0, ahead.places)
        embedded = self._embedded(ahead.tokens)[:, None]
        if self._config.sequence_parallel:
            return scatter_to_sequence_parallel_region(hidden), scatter_to_sequence_parallel_region(embedded)
        return hidden, embedded

    def _embedded(self, tokens: Tensor) -> Tensor:
        """int64 [T'] → [T', H]."""
        assert self._embedding is not None, "started"
        local = tokens - len(self._embedding) * parallel.tensor_rank()
        is_mine = (local >= 0) & (local < len(self._embedding))
        embedded = functional.embedding(torch.where(is_mine, local, 0), self._embedding) * is_mine[:, None]
        if parallel.tensor_size() > 1:
            dist.all_reduce(embedded, group=parallel.tensor_group())
        return embedded

    def _table(self) -> Tensor | None:
        """This rank's slice [V/tp, H] of the embedding; None where the layer is not."""
        own: Tensor | None = None
        if parallel.is_first_stage():
            own = self._first.embedding.word_embeddings.weight.detach()
        if parallel.pipeline_size() == 1:
            return own
        if self._last.share_embeddings_and_output_weights:
            return self._last.output_layer.weight.detach() if self.is_here else None
        if not (parallel.is_first_stage() or self.is_here):
            return None
        group = parallel_state.get_embedding_group()
        table = torch.empty_like(self._last.output_layer.weight) if own is None else own
        dist.broadcast(table, src=dist.get_process_group_ranks(group)[0], group=group)
        return table if self.is_here else None

    def _keep(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._embedding is not None:  # else the policy scores tokens, between mini-batches
            self._hidden = args[0].detach()
