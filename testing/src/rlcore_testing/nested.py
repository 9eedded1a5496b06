"""A model directory whose decoder is a part of a larger model, as Qwen3.5 and Gemma 3 are published."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "model.safetensors"
NESTED = {"model.language_model.": "", "language_model.model.": "language_model."}
"""Begins the names of the decoder, and that of its output layer."""
VISION: dict[str, dict[str, int]] = {
    "Qwen3_5": {
        **{"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 4},
        **{"spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16},
    },
    "Gemma3": {
        **{"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2},
        **{"image_size": 8, "patch_size": 4},
    },
    "Mistral3": {
        **{"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2},
        **{"head_dim": 8, "image_size": 8, "patch_size": 4},
    },
}
_EXPERT = re.compile(r"(.*\.mlp\.experts)\.\d+\.(gate|up|down)_proj\.weight")


def make_nested(text: Path, path: Path) -> Path:
    """Write the directory `path`: the model of `text`, alone, beside a vision tower; a Qwen3.5 with a draft.

    The tower is bf16. The experts of a layer are in one tensor, as in the published files.
    """
    config = json.loads((text / "config.json").read_text())
    kind = config.pop("architectures")[0].removesuffix("ForCausalLM").replace("Ministral3", "Mistral3")
    vision: dict[str, Any] = dict(VISION[kind.removesuffix("Moe")])
    if kind.startswith("Qwen"):
        vision["out_hidden_size"] = config["hidden_size"]
    tied = config.get("tie_word_embeddings", False)
    whole = getattr(transformers, f"{kind}Config")(
        text_config=config, vision_config=vision, tie_word_embeddings=tied
    )
    torch.manual_seed(0)
    getattr(transformers, f"{kind}ForConditionalGeneration")(whole).save_pretrained(path)
    saved = load_file(path / FILE)
    root = next(root for root in NESTED if any(name.startswith(root) for name in saved))
    beside = {
        name: tensor.bfloat16() for name, tensor in saved.items() if not re.match(f"{root}|.*lm_head", name)
    }
    if kind.startswith("Qwen"):
        beside["mtp.norm.weight"] = torch.randn(config["hidden_size"])
    decoder = {
        re.sub(r"^model\.", root, f"{NESTED[root]}{name}" if name == "lm_head.weight" else name): tensor
        for name, tensor in load_file(text / FILE).items()
    }
    save_file(beside | joined(decoder), path / FILE, metadata={"format": "pt"})
    for file in text.iterdir():
        if file.name not in (FILE, "config.json"):
            shutil.copy(file, path)
    return path


def joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with a tensor for all experts of a layer: `gate_up_proj` [E, 2I, H], `down_proj` [E, H, I]."""
    others: dict[str, Any] = {name: x for name, x in tensors.items() if not _EXPERT.fullmatch(name)}
    for start in dict.fromkeys(match[1] for match in map(_EXPERT.fullmatch, tensors) if match):
        count = sum(name.startswith(start) for name in tensors) // 3
        gates, ups, downs = (
            torch.stack([tensors[f"{start}.{number}.{part}_proj.weight"] for number in range(count)])
            for part in ("gate", "up", "down")
        )
        others |= {f"{start}.gate_up_proj": torch.cat([gates, ups], dim=1), f"{start}.down_proj": downs}
    return others
