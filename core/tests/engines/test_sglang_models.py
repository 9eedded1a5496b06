"""What SGLang would end on, or compute otherwise than the trainer, is one sentence before it is started."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.engines.sglang_models import FLASH, LATENT, PUBLISHED, check_model
from rlcore.errors import ModelError

YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}


def _config(**changes: Any) -> dict[str, Any]:
    return {"architectures": [LATENT], **PUBLISHED, **YARN, **changes}


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    "config", [_config(), _config(rope_parameters=None, rope_scaling={"type": "yarn"}), {"architectures": []}]
)
def test_published_models_pass(config: dict[str, Any], on_gpu: bool) -> None:
    check_model(config, on_gpu=on_gpu)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "found"),
    [("moe_layer_freq", None, "none"), ("topk_method", "greedy", "'greedy'"), ("scoring_func", None, "none")],
)
def test_a_field_that_sglang_reads_is_asked_for(name: str, value: Any, found: str, on_gpu: bool) -> None:
    config = _config(**{name: value})
    if value is None:
        del config[name]
    said = f"{name} of config.json, found {found}, expected {PUBLISHED[name]!r}"
    with pytest.raises(ModelError, match=said):
        check_model(config, on_gpu=on_gpu)


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_type": "default"}}])
def test_positions_that_it_lacks_on_a_cpu_are_refused_there(rope: dict[str, Any]) -> None:
    config = {key: value for key, value in _config().items() if key not in YARN} | rope
    check_model(config, on_gpu=True)
    with pytest.raises(ModelError, match=r"on a CPU .* found rope_type 'default'"):
        check_model(config, on_gpu=False)


def _flash(**changes: Any) -> dict[str, Any]:
    sizes = {"q_lora_rank": 24, "num_hidden_layers": 3, "first_k_dense_replace": 1}
    return {"architectures": [FLASH], **sizes, **changes}


@pytest.mark.parametrize(
    "changes", [{}, {"mlp_layer_types": ["dense", "dense", "sparse"], "first_k_dense_replace": 2}]
)
def test_a_published_flash_passes(changes: dict[str, Any]) -> None:
    check_model(_flash(**changes), on_gpu=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q_lora_rank": None}, "no q_lora_rank in config.json; take --engine local"),
        ({"first_k_dense_replace": None}, r"found None, but its mlp_layer_types are \['dense', 'sparse', 's"),
        ({"first_k_dense_replace": 0}, "first_k_dense_replace of config.json, found 0, but"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "found 1, but its mlp_layer_types are"),
    ],
)
def test_a_flash_that_sglang_would_make_another_one_of(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_model(_flash(**changes), on_gpu=True)
