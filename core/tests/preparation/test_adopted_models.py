"""Models that come with code of their own, beside the policy: each is read as its family adopts it."""

import json
from pathlib import Path

import pytest
from inputs import make_model
from runs import run_of

from rlcore.api.part import ModelSpec
from rlcore.compose.models import read_config
from rlcore.preparation.role_models import prepare_frozen, role_specs


def test_the_reference_and_a_frozen_model_are_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = make_model(tmp_path / "mimo", "qwen2")
    config = {**json.loads((path / "config.json").read_text()), "model_type": "mimo"}
    config |= {
        "architectures": ["MiMoForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
    }
    (path / "config.json").write_text(json.dumps(config))
    flags = {
        "model": str(path),
        "kl_coef": "0.1",
        "reference.model": str(path),
        "distill_coef": "0.1",
        "teacher.url": "frozen:t",
        "frozen": [f"t={path}"],
        "reward": ["exact_match"],
        "task": "copy",
        "max_prompt_tokens": "32",
        "max_response_tokens": "32",
    }
    run = run_of("grpo", flags)
    policy = ModelSpec(path=str(run.model.path), bridge=run.model.bridge, dtype="fp32", fields={})
    roles = role_specs(run, policy, read_config(policy.path), run.trainer.build(), gpu=False)
    (teacher,) = prepare_frozen(run, Path(policy.path))
    assert read_config(policy.path)["model_type"] == "qwen2"
    assert roles["reference"].model.path == teacher.path == policy.path != str(path)
