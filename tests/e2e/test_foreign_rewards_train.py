"""Reward functions of other frameworks train, as their packages ship them."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import SMALL, Run, rows

VERL = find_spec("verl")
TRL = "from trl.rewards import get_repetition_penalty_reward\nrepetition = get_repetition_penalty_reward(1)\n"
SLIME = """
async def custom_rm(args, sample, **kwargs):
    return sample.response_length / args.rollout_max_response_len
"""


@pytest.mark.skipif(VERL is None, reason="needs verl")
def test_functions_of_trl_verl_and_slime_train_together(run: Run, tmp_path: Path) -> None:
    """verl's `method` and `format_score` come from the metadata: a number that is wrong has half a point."""
    assert VERL is not None
    assert VERL.origin is not None
    (tmp_path / "of_trl.py").write_text(f'{TRL}__all__ = ["repetition"]\n')
    (tmp_path / "of_slime.py").write_text(SLIME)
    metadata = {"method": "flexible", "format_score": 0.5}
    prompts = [{"prompt": str(n), "label": str(n), "metadata": metadata} for n in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in prompts))
    functions = (
        f"{tmp_path}/of_trl.py:repetition",
        f"{Path(VERL.origin).parent}/utils/reward_score/gsm8k.py:compute_score=2",
        f"{tmp_path}/of_slime.py:custom_rm=0.1",
    )
    rewards = [word for function in functions for word in ("--reward", function)]
    data = ("--algo", "grpo", "--model", "qwen3", "--data", str(tmp_path / "data.jsonl"))
    run(
        *("train", *data, *rewards, *SMALL, "--steps", "2", "--eval-every", "0"),
        *("--max-response-tokens", "8", "--run-dir", str(tmp_path / "run")),
    )
    for step in rows(tmp_path / "run")[-2:]:
        assert step["train/grad_norm"] > 0
        assert step["rollout/reward_failed"] == 0
        assert -1 < step["reward/repetition"] < 0
        assert 0 < step["reward/compute_score"] < 1
        assert 0 < step["reward/custom_rm"] <= 1
