"""What SGLang would end on, or compute otherwise than the trainer, is one sentence before it is started."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.engines.sglang_models import LATENT, PUBLISHED, check_model
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
