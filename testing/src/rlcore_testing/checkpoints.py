"""Random checkpoints of transformers' own classes, and what transformers computes with them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

LENGTHS = (5, 7, 1, 7, 12)
"""The sequences of the input: 32 tokens, two of a length, one of a single token."""
WEIGHT_GAIN, NORM_SPREAD, BIAS_SPREAD = 1.2, 0.2, 0.2
SHARD = "20KB"
CARRIED = {
    "tokenizer.json": '{"version": "1.0"}\n',
    "tokenizer_config.json": "{}\n",
    "chat_template.jinja": "x",
}
"""Files beside the weights, which a round trip leaves as they are."""

_MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped


@dataclass(frozen=True, kw_only=True)
class HfReference:
    """What transformers makes of the n tokens of `LENGTHS`, sequence after sequence.

    `ids` int64 [N, longest], random where there is padding; `mask` bool [N, longest]; `logits` fp32 [n, V];
    `half` the same of the model in bf16; `loss` of `weighted_loss`; `gradients` by their names on disk.
    """

    ids: Tensor
    mask: Tensor
    logits: Tensor
    half: Tensor
    loss: float
    gradients: dict[str, Tensor]


def make_checkpoint(path: Path, config: PretrainedConfig, seed: int = 0) -> HfReference:
    """Save a model of `config` at `path`, every persistent value of it random, in shards of `SHARD`."""
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = _MODELS.from_config(config, dtype=torch.float32).eval()
    randomize(model)
    model.save_pretrained(path, max_shard_size=SHARD)
    for name, text in CARRIED.items():
        (path / name).write_text(text)
    ids = torch.randint(0, config.vocab_size, (len(LENGTHS), max(LENGTHS)))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    logits = model(ids, attention_mask=mask.long()).logits[mask]
    loss = weighted_loss(logits, ids[mask])
    torch.autograd.backward(loss)
    half = _MODELS.from_pretrained(path, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        half_logits = half(ids, attention_mask=mask.long()).logits[mask].float()
    return HfReference(
        ids=ids,
        mask=mask,
        logits=logits.detach(),
        half=half_logits,
        loss=loss.item(),
        gradients=gradients_of(model, path.with_name(f"{path.name}.gradients")),
    )


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Every parameter and every buffer that is saved: norms around their first values, which are one or zero,
    and matrices that keep the scale.
    """
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1:
            tensor.normal_(0.0, WEIGHT_GAIN * tensor.shape[-1] ** -0.5)
        elif name.endswith("norm.weight"):
            tensor.normal_(float(tensor.mean()), NORM_SPREAD)
        else:
            tensor.normal_(0.0, BIAS_SPREAD)


def publish_fp8(path: Path, block: tuple[int, int], scales: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Make a directory as DeepSeek-V3 is published: its projections FP8, with a scale for each `block`.

    Norms, embeddings, output head and router stay full. `scales`: their dtype; Qwen3's are bf16. Returns
    what all weights stand for, in fp32.
    """
    stands_for, stored = {}, {}
    for name, tensor in tensors_of(path).items():
        stands_for[name] = stored[name] = tensor
        if name.endswith("proj.weight") or ".kv_a_proj" in name:
            stored[name], stored[f"{name}_scale_inv"], stands_for[name] = _in_blocks(tensor, block, scales)
    for file in [*path.glob("*.safetensors"), *path.glob("*.index.json")]:
        file.unlink()
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}
    (path / "config.json").write_text(json.dumps(config))
    return stands_for


def weighted_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """A mean of cross entropies, each weighed differently. logits [n, V], tokens int64 [n] → scalar."""
    losses = functional.cross_entropy(logits.float(), tokens.roll(1), reduction="none")
    weights = 1.0 + 0.5 * torch.sin(torch.arange(tokens.numel()).to(losses))
    return (losses * weights).mean()


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Every tensor of a directory's safetensors files."""
    return dict(_tensors_of(path))


def index_of(path: Path) -> dict[str, str]:
    """File of each tensor, as the directory's index has it."""
    index: dict[str, str] = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    return index


def same_shape_pairs(tensors: dict[str, Tensor]) -> Sequence[tuple[str, str]]:
    """Pairs of names whose tensors could be taken for each other; every name that has a like is in one."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in sorted(tensors.items()):
        shapes.setdefault(tuple(tensor.shape), []).append(name)
    return [pair for names in shapes.values() for pair in itertools.pairwise(names)]


def _in_blocks(weight: Tensor, block: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """weight [M, N] → FP8 [M, N], scales [⌈M / rows⌉, ⌈N / columns⌉], and what both are, fp32 [M, N]."""
    heights, widths = (-(-size // step) for size, step in zip(weight.shape, block, strict=True))
    scales = torch.empty(heights, widths, dtype=dtype)
    small, full = weight.to(torch.float8_e4m3fn), torch.empty(weight.shape)
    for i, j in itertools.product(range(heights), range(widths)):
        part = tuple(slice(n * step, (n + 1) * step) for n, step in zip((i, j), block, strict=True))
        scales[i, j] = weight[part].abs().max() / torch.finfo(small.dtype).max
        scale = scales[i, j].float()
        small[part] = (weight[part] / scale).to(small.dtype)
        full[part] = small[part].float() * scale
    return small, scales, full


def _tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - it is no mapping
                yield name, handle.get_tensor(name)


def gradients_of(model: Any, path: Path) -> dict[str, Tensor]:
    """The gradients under the names that transformers saves the weights by: they take the weights' place.

    `path`: a directory to save them to.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for buffer in model.buffers():
            buffer.zero_()
    model.save_pretrained(path)
    return tensors_of(path)
