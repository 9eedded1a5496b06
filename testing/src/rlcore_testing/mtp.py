"""Layers for multi-token prediction: checkpoints that have one, and what its formula gives in plain torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from rlcore.api.batch import TrainBatch
from rlcore_testing.checkpoints import NORM_SPREAD, WEIGHT_GAIN, gradients_of, tensors_of

_MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped


def publish_mtp(path: Path) -> dict[str, Tensor]:
    """Make the last layer of a directory its layer for multi-token prediction, as DeepSeek-V3 is published.

    The matrix in front of it and the norms are random. Returns all weights, in one file afterwards.
    """
    config = json.loads((path / "config.json").read_text())
    layer, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    tensors = tensors_of(path)
    embedding = tensors["model.embed_tokens.weight"]
    own = {
        "enorm.weight": torch.normal(1.0, NORM_SPREAD, (hidden,)),
        "hnorm.weight": torch.normal(1.0, NORM_SPREAD, (hidden,)),
        "eh_proj.weight": torch.normal(0.0, WEIGHT_GAIN * (2 * hidden) ** -0.5, (hidden, 2 * hidden)),
        "shared_head.norm.weight": torch.normal(1.0, NORM_SPREAD, (hidden,)),
        "embed_tokens.weight": embedding.clone(),
        "shared_head.head.weight": tensors.get("lm_head.weight", embedding).clone(),
    }
    tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in own.items()}
    config |= {"num_hidden_layers": layer, "num_nextn_predict_layers": 1}
    for name in ("layer_types", "mlp_layer_types", "indexer_types"):
        if config.get(name):
            config[name] = config[name][:layer]
    for file in [*path.glob("*.safetensors"), *path.glob("*.index.json")]:
        file.unlink()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return tensors


MIMO = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "shared_head.norm": "final_layernorm",
}
"""What `publish_mtp` writes beside attention and MLP → MiMo's name of it."""


def as_mimo(tensors: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The same, with the layer that `publish_mtp` made of number `layer` as MiMo-7B is published.

    The matrix in front of it takes hidden states before embeddings. Embedding and head stand there once.
    """
    own, found = f"model.layers.{layer}.", {}
    for name, tensor in tensors.items():
        place = name.removeprefix(own).removesuffix(".weight")
        if name.startswith(own) and place in ("embed_tokens", "shared_head.head"):
            continue
        whole = torch.cat(tensor.chunk(2, -1)[::-1], -1) if place == "eh_proj" else tensor
        renamed = f"{own}{MIMO[place]}.weight" if place in MIMO else name
        found[renamed.replace(own, "model.mtp_layers.0.")] = whole.contiguous()
    return found


def publish_mimo(path: Path) -> dict[str, Tensor]:
    """Make the last layer of a Qwen2 its layer for multi-token prediction, as MiMo-7B is published.

    Its config.json names code of the model's repository, which is not there. Returns all weights.
    """
    tensors = publish_mtp(path)
    config = json.loads((path / "config.json").read_text())
    tensors = as_mimo(tensors, config["num_hidden_layers"])
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    config["auto_map"] = {"AutoConfig": "configuration_mimo.MiMoConfig"}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def mtp_reference(
    plain: Path, published: Path, batch: TrainBatch, factor: float, folder: Path
) -> tuple[float, dict[str, Tensor]]:
    """The mean loss, and the gradients of `factor` times it by their names: of the layer alone.

    DeepSeek-V3's report (https://arxiv.org/abs/2412.19437), eq. 21 to 25, around a layer of transformers.
    `plain`: the directory of which `publish_mtp` made `published`. `folder`: a new one, for the gradients.
    """
    model: Any = _MODELS.from_pretrained(plain)
    last, head, losses = model.config.num_hidden_layers - 1, model.lm_head.weight.detach(), []
    prefix = f"model.layers.{last}."
    own = {name: tensor for name, tensor in tensors_of(published).items() if name.startswith(prefix)}
    weight = {name.removeprefix(prefix): tensor.requires_grad_() for name, tensor in own.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight[f"{name}.weight"], model.config.rms_norm_eps)

    masks = batch.per_token["loss_mask"].split(batch.response_lengths.tolist())
    sequences = batch.tokens.split(batch.lengths.tolist())
    for tokens, prompt, mask in zip(sequences, batch.prompt_lengths.tolist(), masks, strict=True):
        if mask[1:].sum() == 0:
            continue
        with torch.no_grad():
            embedded = model.model.embed_tokens(tokens)
            hidden = embedded[None]
            for number in range(last):
                hidden = _layer(model, number, hidden)
            hidden = model.model.norm(hidden)[0]
        joined = torch.cat((norm(embedded[1:], "enorm"), norm(hidden[:-1], "hnorm")), -1)
        out = _layer(model, last, (joined @ weight["eh_proj.weight"].T)[None])[0]
        log_probs = (norm(out, "shared_head.norm") @ head.T).log_softmax(-1)
        after_next = log_probs[:-1].gather(1, tokens[2:, None])[:, 0]
        losses.append(-after_next[prompt - 1 :][mask[1:] > 0])
    loss = torch.cat(losses).mean()
    torch.autograd.backward(factor * loss)
    of_layer = {
        name: gradient for name, gradient in gradients_of(model, folder).items() if name.startswith(prefix)
    }
    beside = {
        f"{prefix}{name}": parameter.grad for name, parameter in weight.items() if parameter.grad is not None
    }
    return loss.item(), {**of_layer, **beside}


def _layer(model: Any, number: int, x: Tensor) -> Tensor:
    """One of the decoder's layers as transformers computes it. x [1, T, H] → the same shape."""
    positions = torch.arange(x.shape[1])[None]
    causal = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    rope = model.model.rotary_emb(x, positions)
    kinds = getattr(model.config, "layer_types", None)
    mask = None if kinds and kinds[number] == "linear_attention" else causal  # a delta net's is of padding
    out = model.model.layers[number](x, attention_mask=mask, position_ids=positions, position_embeddings=rope)
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
