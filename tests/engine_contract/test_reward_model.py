"""A reward model behind the real SGLang: the scores are transformers', of Qwen too, whose head it extends."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlcore.api.part import Part
from rlcore_remote.client import ServerError
from rlcore_remote.config import RewardModelConfig
from rlcore_remote.reward_model import RewardModel
from rlcore_sglang.config import SglangConfig
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_testing.reward_models import CONTEXT, make_reward_model, reference_scores
from rlcore_testing.rewards import sample

ANSWERS = ("4", "It is four, as everybody knows.", "", "5")
TOLERANCE = 1e-4


@pytest.mark.sglang
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_sglang_scores_as_transformers_does(family: str, tmp_path: Path) -> None:
    model = make_reward_model(tmp_path / "model", family)
    config = SglangConfig(python=os.environ["RLCORE_SGLANG_PYTHON"], start_limit_s=280.0)
    engine = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)
    launch = replace(launch_of(model, tmp_path, context_length=CONTEXT), classifier=True)
    chats = [
        [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": text}] for text in ANSWERS
    ]
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    with serving(launch, engine) as url:
        reward = RewardModel(RewardModelConfig(url="frozen:rm").served(url, TOKEN, str(model)))
        found = reward.score([sample(text, prompt="2+2?") for text in ANSWERS])
        with pytest.raises(ServerError, match="longer than the model's context length"):
            reward.score([sample("4" * CONTEXT)])
    wanted = [scores[0] for scores in reference_scores(model, ids)]
    assert [score.value for score in found] == pytest.approx(wanted, abs=TOLERANCE)
