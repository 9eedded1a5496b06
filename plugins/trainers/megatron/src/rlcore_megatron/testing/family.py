"""Tiny models of a family, for a check of its bridge: what its record offers, with small numbers."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import transformers

from rlcore import ModelFamily, Part, PluginError
from rlcore_megatron.testing.grid import Choice
from rlcore_toolkit import indexed_layers

LAYERS = 2
SMALL: Choice = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "eos_token_id": 1,
    "pad_token_id": None,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "index_topk": 3,
    "index_n_heads": 12,
    "index_head_dim": 12,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 5,  # so that each expert has tokens of its own
    "num_nextn_predict_layers": 0,
    "mtp_num_hidden_layers": 0,
    "shared_expert_intermediate_size": 24,
    "full_attention_interval": 2,
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
}
"""What takes the place of a size of config.json. A null stays: the model has no such matrix."""
SHARING = ("indexer_types", "index_topk_", "index_skip_")
"""Begin the fields that say which layers share an indexer."""
DECODER = "text_config"
"""Where the config.json of a larger model has that of its decoder."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
OTHERS = ("architectures", "model_type", "auto_map", "quantization_config", "dtype", "torch_dtype")
"""Fields of config.json that the model of a suite does not have: it is random, and fp32."""


def published(record: ModelFamily) -> dict[str, Mapping[str, Any]]:
    """Name → config.json of each size that the family says it takes, else that of its preset.

    Raises `PluginError` where it offers neither.
    """
    configs: dict[str, Mapping[str, Any]] = {
        name: {**config.get(DECODER, config), "architectures": config["architectures"]}
        for name, config in _sizes(record)
        if config["architectures"][0] in record.architectures
    }
    if not configs and record.preset:
        with tempfile.TemporaryDirectory() as folder:
            Part(name=record.name, factory=record.preset).load()(folder, 0)
            configs = {record.name: json.loads((Path(folder) / "config.json").read_text())}
    if not configs:
        raise PluginError(
            f"model {record.name!r} has neither `sizes` nor a `preset`, so that no model of it can be made; "
            "subclass BridgeConformance in a test of its package."
        )
    return configs


def config_class(config: Mapping[str, Any]) -> type[transformers.PretrainedConfig]:
    """Transformers' class for the config.json of a decoder."""
    return transformers.CONFIG_MAPPING[config["model_type"]]


def shrunk(config: Mapping[str, Any], layers: int = LAYERS) -> dict[str, Any]:
    """The fields of a tiny model whose kind of layers, heads, norms and positions is that of `config`."""
    fields = {name: value for name, value in config.items() if name not in OTHERS}
    for name, value in SMALL.items():
        if fields.get(name) is not None:
            fields[name] = value
    fields |= {"num_hidden_layers": layers, "bos_token_id": None, "eos_token_id": SMALL["eos_token_id"]}
    if has_experts(config) and "moe_intermediate_size" not in config:
        fields["intermediate_size"] = SMALL["moe_intermediate_size"]
    for name in ("layer_types", "mlp_layer_types"):
        if name in fields:
            fields[name] = list(islice(cycle(fields[name]), layers))
    if "linear_conv_kernel_dim" in fields:
        fields["head_dim"] = 16  # a quarter of it turns
        # a delta net's output norm divides by values near 0: with the usual eps fp32 is not exact to 1e-5
        fields["rms_norm_eps"] = 0.1
    if fields.get("first_k_dense_replace"):
        fields["first_k_dense_replace"] = 1
    if config.get("num_key_value_heads") == config.get("num_attention_heads"):
        fields["num_key_value_heads"] = SMALL["num_attention_heads"]
    if fields.get("n_group", 1) > 1:
        fields |= {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
    if len(indexed_layers(config)) not in (0, config["num_hidden_layers"]):
        # layers share an indexer; in deeper models each has one, so that every layout is possible
        fields = {name: value for name, value in fields.items() if not name.startswith(SHARING)}
        fields["indexer_types"] = ["full", "shared" if layers == LAYERS else "full"] * (layers // 2)
    if "qk_rope_head_dim" in fields:
        fields.pop("head_dim", None)  # transformers takes it for the width of the positions
    return fields


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether some of its layers route tokens to experts."""
    return any(config.get(name) for name in EXPERTS)


def _sizes(record: ModelFamily) -> Iterator[tuple[str, Any]]:
    if record.sizes is None:
        return
    package, _, folder = record.sizes.partition(":")
    for file in sorted(Path(str(resources.files(package).joinpath(folder))).glob("*.json")):
        yield file.stem, json.loads(file.read_text())
