"""What the ranks of a bridge's conformance tests do; `rlcore_testing.ranks` runs these functions."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
from torch import Tensor

from rlcore import AdapterSpec, ModelSpec, OptimizerSettings, Part, SavedWeights, TrainBatch, UserError
from rlcore_megatron import convert
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.optimizer.wrappers import wrap_for_gradients
from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.narrowing import shared_params
from rlcore_megatron.mcore.role.build import Built, build_model
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import adapter_tensors, hf_tensors
from rlcore_testing.checkpoints import weighted_loss
from rlcore_testing.tiny import policy_loss, random_batch

SHARD_BYTES = 20_000


@dataclass(frozen=True)
class Input:
    """A pack of all sequences: `rows` are the places of the n real tokens, in the order of a reference."""

    tokens: Tensor
    positions: Tensor
    params: PackedSeqParams
    rows: Tensor


def measure(
    rank: int,
    size: int,
    port: int,
    bridge: Part,
    root: Path,
    inputs: Mapping[str, tuple[Tensor, Tensor]],
    layouts: Sequence[Mapping[str, Any]],
    more_ports: Sequence[int],
    adapters: Mapping[str, tuple[Path, AdapterSpec]],
) -> list[dict[str, dict[str, Any]]]:
    """For each layout, of each model under `root`: logits, loss, gradients and weights, by model.

    `inputs`: ids and mask of each model. Logits and loss on the last stage only: packed and padded logits
    [n, V], and the sum of both losses, of which the gradients are. `adapters`: of some models, a base and an
    adapter on it; the same of these is the model's "adapted".
    """
    measured: list[dict[str, dict[str, Any]]] = []
    for place, fields in zip((port, *more_ports), layouts, strict=True):
        start(rank, size, place, fields)
        measured.append({name: _one(root / name, bridge, fields, *inputs[name]) for name in inputs})
        for name, (base, adapter) in adapters.items():
            measured[-1][name]["adapted"] = _one(base, bridge, fields, *inputs[name], adapter)
        parallel.stop()
    return measured


def packed_logits(
    rank: int,
    size: int,
    port: int,
    bridge: Part,
    root: Path,
    inputs: Mapping[str, tuple[Tensor, Tensor]],
    dtype: str,
) -> dict[str, Tensor]:
    """The packed logits of each model with weights of `dtype`, as fp32."""
    start(rank, size, port, {})
    by_model = {}
    for name, (ids, mask) in inputs.items():
        spec = ModelSpec(path=str(root / name), bridge=bridge, dtype=dtype)
        built = build_model(spec, trainable=False)
        part = packed(ids, mask)
        with torch.no_grad():
            logits = built.forward(part.tokens, part.positions, part.params)[0]
        by_model[name] = logits[:, : built.hf_config.vocab_size].float()
    parallel.stop()
    return by_model


def save_again(rank: int, size: int, port: int, bridge: Part, root: Path, out: Path) -> None:
    """Each model under `root`, as a checkpoint, and of that again to `out` in small files."""
    for path in sorted(root.iterdir()):
        spec = ModelSpec(path=str(path), bridge=bridge)
        with tempfile.TemporaryDirectory() as folder:
            middle = Path(folder) / "checkpoint"
            convert.to_dist(spec, middle, _unseen)
            source = SavedWeights(spec=spec, folder=middle / convert.WEIGHTS)
            convert.to_hf(source, out / path.name, _unseen, SHARD_BYTES)


def log_probs(
    rank: int, size: int, port: int, bridge: Part, root: Path, batches: Mapping[str, TrainBatch]
) -> dict[str, Tensor]:
    """The trainer's log-probs of each model's response tokens, in the order of its batch."""
    start(rank, size, port, {})
    by_model = {}
    for name, batch in batches.items():
        role = Role(ModelSpec(path=str(root / name), bridge=bridge), None)
        by_model[name] = role.forward(batch, temperature=1.0, tokens_per_rank=64)["log_probs"]
    parallel.stop()
    return by_model


def shared_prompts(
    rank: int, size: int, port: int, bridge: Part, root: Path, names: Sequence[str]
) -> dict[str, list[tuple[Tensor, dict[str, Tensor], int]]]:
    """Log-probs, gradients and embedded tokens of each model: prompts of a group computed once, and not."""
    start(rank, size, port, {})
    batch = random_batch(9)
    apart = replace(batch, per_sample={**batch.per_sample, "group": torch.arange(len(batch))})
    fields = {"use_distributed_optimizer": False}  # the rank then holds whole gradients
    by_model = {}
    for name in names:
        spec = ModelSpec(path=str(root / name), bridge=bridge, fields=fields)
        role = Role(spec, OptimizerSettings(lr=0.0, clip_grad=0.0))
        by_model[name] = [_step(role, one) for one in (batch, apart)]
    parallel.stop()
    return by_model


def _step(role: Role, batch: TrainBatch) -> tuple[Tensor, dict[str, Tensor], int]:
    whole: dict[str, Any] = {"temperature": 1.0, "tokens_per_rank": 1000}
    log_probs = role.forward(batch, **whole)["log_probs"]
    embedded: list[int] = []
    [embedding] = [
        module
        for chunk in role.built.chunks
        for name, module in chunk.named_modules()
        if name.endswith("embedding")
    ]
    handle = embedding.register_forward_hook(lambda _, __, out: embedded.append(len(out)))
    role.train(batch, policy_loss, **whole)
    handle.remove()
    named = [pair for chunk in role.built.chunks for pair in chunk.named_parameters()]
    gradients = {key: vars(one)["main_grad"].clone() for key, one in named if one.requires_grad}
    return log_probs, gradients, sum(embedded)


def refusals(rank: int, size: int, port: int, bridge: Part, paths: Sequence[Path]) -> list[str]:
    """What building each of `paths` says."""
    start(rank, size, port, {})
    messages = []
    for path in paths:
        try:
            build_model(ModelSpec(path=str(path), bridge=bridge))
        except UserError as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("nothing")
    parallel.stop()
    return messages


def start(rank: int, size: int, port: int, fields: Mapping[str, Any]) -> None:
    """Lay the ranks out as `fields` of `--megatron` say."""
    parallel.start(rank, size, "127.0.0.1", port, timeout=60.0, **split(check_fields(fields)).layout)


def packed(ids: Tensor, mask: Tensor) -> Input:
    """ids int64 [N, longest], mask bool of the same shape → the real tokens alone."""
    return _pack(ids[mask], mask.sum(1), torch.arange(int(mask.sum())))


def padded(ids: Tensor, mask: Tensor) -> Input:
    """The same with the padding behind each sequence."""
    lengths = torch.full((ids.shape[0],), ids.shape[1])
    return _pack(ids.flatten(), lengths, mask.flatten().nonzero()[:, 0])


def _pack(tokens: Tensor, lengths: Tensor, rows: Tensor) -> Input:
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    longest = int(lengths.max())
    ends = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}
    params = PackedSeqParams(qkv_format="thd", **ends, max_seqlen_q=longest, max_seqlen_kv=longest)
    positions = torch.cat([torch.arange(int(length)) for length in lengths])
    return Input(tokens[None], positions[None], params, rows)


def _one(
    path: Path,
    bridge: Part,
    fields: Mapping[str, Any],
    ids: Tensor,
    mask: Tensor,
    adapter: AdapterSpec | None = None,
) -> dict[str, Any]:
    built = build_model(ModelSpec(path=str(path), bridge=bridge, fields=fields), adapter=adapter)
    weights = {key: tensor.clone() for key, tensor in hf_tensors(built)}
    parts = adapter_tensors(built)
    logits, losses = _train(built, [packed(ids, mask), padded(ids, mask)], ids[mask])
    with torch.no_grad():  # the gradients take the way of the weights
        for chunk in built.chunks:
            for parameter in chunk.parameters():
                if adapter is not None and not parameter.requires_grad:
                    continue
                # of megatron, which gives a frozen one none; summed over the data-parallel ranks, which see
                # the same input
                gradient = getattr(parameter, "main_grad", torch.zeros(()))
                parameter.copy_(gradient / parallel.data_size())
            for buffer in chunk.buffers() if adapter is None else ():
                buffer.zero_()
    trained = hf_tensors(built) if adapter is None else adapter_tensors(built).items()
    gradients = {key: tensor.clone() for key, tensor in trained}
    result = {"logits": logits, "loss": sum(losses), "gradients": gradients, "weights": weights}
    return {**result, "adapter": parts}


def _train(built: Built, parts: Sequence[Input], tokens: Tensor) -> tuple[list[Tensor], list[float]]:
    """Forward and backward of each part, as the trainer runs them: logits and losses, on the last stage."""
    whole = {"use_distributed_optimizer": False}  # a rank then holds all gradients of its parameters
    models: list[Any] = list(wrap_for_gradients(built.chunks, built.config, whole))
    built.config.finalize_model_grads_func = _finalize
    logits: list[Tensor] = []
    losses: list[float] = []

    def step(remaining: Iterator[Input], model: Any) -> tuple[Tensor, Any]:
        part = next(remaining)
        share = Share.of_process(part.tokens.shape[1])
        places = slice(None) if share is None else share.places
        params = part.params if share is None else shared_params(part.params, share)
        out = model(part.tokens[:, places], part.positions[:, places], None, packed_seq_params=params)

        def loss(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            wide = gather_from_tensor_model_parallel_region(output)[0, :, : built.hf_config.vocab_size]
            every = wide if share is None else share.gather(wide)
            real = every.index_select(0, part.rows)
            total = weighted_loss(real, tokens)
            logits.append(real.detach())
            losses.append(total.item())
            # every context-parallel rank has the whole loss, and their gradients are summed
            return total / parallel.context_size(), torch.zeros((), dtype=torch.int), {}

        return out, loss

    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=[iter(parts) for _ in models],
        model=models,
        num_microbatches=len(parts),
        seq_length=max(part.tokens.shape[1] for part in parts),
        micro_batch_size=1,
        forward_only=False,
    )
    return logits, losses


def _finalize(models: list[Any], num_tokens: Tensor | None = None, **known: Any) -> None:
    """Sums gradients over ranks as the trainer does, and never divides them."""
    finalize_model_grads(models, None, **known)


def _unseen(done: int, total: int) -> None:
    """Progress that nobody looks at."""
