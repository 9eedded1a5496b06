"""What the trainer adds to the fields that a user gives."""

from collections.abc import Mapping
from typing import Any

import pytest

from rlcore import ConfigError, RunConfig
from rlcore_megatron.config import MegatronConfig
from rlcore_megatron.fields import RECOMPUTE
from rlcore_megatron.trainer import MegatronTrainer


def fields(given: Mapping[str, Any], *, gpu: bool = True, **run: Any) -> Mapping[str, Any]:
    return MegatronTrainer(MegatronConfig()).fields(RunConfig.of(**run), given, gpu=gpu)


def test_a_gpu_recomputes_unless_something_is_said_of_it() -> None:
    assert (fields({}), fields({}, gpu=False)) == (RECOMPUTE, {})
    assert fields({"recompute_granularity": "none"}) == {"recompute_granularity": None}
    other = {"recompute_granularity": "selective", "adam_beta2": "0.9"}
    assert fields(other) == {"recompute_granularity": "selective", "adam_beta2": 0.9}
    assert fields({"adam_beta2": "0.9"}) == {**RECOMPUTE, "adam_beta2": 0.9}


def test_a_replayed_choice_of_experts_is_not_made_anew() -> None:
    given = {"recompute_granularity": "selective", "recompute_modules": "moe"}
    assert fields(given)["recompute_modules"] == ["moe"]
    with pytest.raises(ConfigError, match="found moe with --replay-routing"):
        fields(given, replay_routing=True)
