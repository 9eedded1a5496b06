"""The sizes of a model that decide its memory, read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rlcore.compose.model_fit import EXPERTS
from rlcore.compose.models import hub_config, read_config_file
from rlcore.errors import ModelError, did_you_mean

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "glm4", "glm4_moe", "deepseek_v3")
"""model_type of config.json."""


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention. `query`: rank of the queries, 0 where they are not compressed."""

    query: int
    key_value: int
    unrotated: int
    rotated: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture: `count` experts of width `width` a layer, `active` of them for each token.

    `shared`: width of what every token takes beside them. `first_dense`: layers before the first mixture.
    """

    count: int
    active: int
    width: int
    shared: int
    first_dense: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A decoder. `head`: dimensions of one head. `qkv_bias`, `qk_norm`: whether there are such.

    `sandwich`: whether norms stand behind attention and MLP too.
    """

    family: str
    layers: int
    hidden: int
    width: int
    heads: int
    groups: int
    head: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    sandwich: bool = False
    latent: Latent | None = None
    experts: Experts | None = None

    @staticmethod
    def of(config: Mapping[str, Any], where: str) -> Facts:
        """From the values of a config.json. ModelError, which speaks of `where`, for one not known."""
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ModelError(
                f"{where}: found model_type {family!r}, expected one of {', '.join(FAMILIES)}."
                f"{did_you_mean(str(family), FAMILIES)}"
            )
        try:
            return _facts(str(family), config)
        except KeyError as error:
            raise ModelError(f"{where}: {error} is missing.") from error
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ModelError(f"{where}: is no config of a model ({error}).") from error

    @staticmethod
    def read(model: str) -> Facts:
        """Of what `read_config` takes. ModelError."""
        return Facts.of(read_config(model), model)

    @property
    def cache_values(self) -> int:
        """Numbers that an engine keeps of one token."""
        latent = self.latent
        per_layer = latent.key_value + latent.rotated if latent else 2 * self.groups * self.head
        return self.layers * per_layer


def presets() -> list[str]:
    """The names of the published sizes that are known."""
    files = resources.files("rlcore.plan").joinpath("presets").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def read_config(model: str) -> Mapping[str, Any]:
    """The config of a preset, a Hugging Face directory, a config.json or a hub id. ModelError."""
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file() and model.count("/") == 1 and not model.startswith((".", "/", "~")):
        path = Path(hub_config(model, "--model")) / "config.json"
    elif not path.is_file():
        if model not in presets():
            raise ModelError(
                f"--model: found {model!r}, expected a directory, a config.json, a hub id or one of "
                f"{', '.join(presets())}.{did_you_mean(model, presets())}"
            )
        path = Path(str(resources.files("rlcore.plan").joinpath("presets", f"{model}.json")))
    return read_config_file(path, f"--model {model}")


def _facts(family: str, config: Mapping[str, Any]) -> Facts:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return Facts(
        family=family,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        width=int(config["intermediate_size"]),
        heads=heads,
        groups=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe") or bool(config.get("use_qk_norm", False)),
        sandwich=family == "glm4",
        latent=_latent(config) if family == "deepseek_v3" else None,
        experts=_experts(config) if family in ("qwen3_moe", "glm4_moe", "deepseek_v3") else None,
    )


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        query=int(config.get("q_lora_rank") or 0),
        key_value=int(config["kv_lora_rank"]),
        unrotated=int(config["qk_nope_head_dim"]),
        rotated=int(config["qk_rope_head_dim"]),
        value=int(config["v_head_dim"]),
    )


def _experts(config: Mapping[str, Any]) -> Experts:
    # transformers 5 writes another name than the published configs have
    named = next((name for name in EXPERTS if name in config), EXPERTS[0])
    width = int(config["moe_intermediate_size"])
    return Experts(
        count=int(config[named]),
        active=int(config["num_experts_per_tok"]),
        width=width,
        shared=width * int(config.get("n_shared_experts") or 0),
        first_dense=int(config.get("first_k_dense_replace") or 0),
    )
