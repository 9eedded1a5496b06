"""`reward_model` against a real server of a tiny classifier: what transformers says of the chat."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer

from rlcore import ConfigError, ModelError, RewardPart, Sample
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_local.testing import LOCAL
from rlcore_remote.config import RewardModelConfig
from rlcore_remote.reward_model import RewardModel
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_testing.reward_models import CONTEXT, make_reward_model, reference_scores
from rlcore_testing.rewards import Case, RewardConformance, sample

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two scores; the second is that of the tests."""
    return make_reward_model(tmp_path_factory.mktemp("rewards") / "model", num_labels=2)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory, forked_servers: None) -> Iterator[str]:
    with serving(launch_of(model, tmp_path_factory.mktemp("server"), context_length=CONTEXT), LOCAL) as at:
        yield at


@pytest.fixture
def settings(model: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Those of a server at a URL."""
    monkeypatch.setenv("REWARD_TOKEN", TOKEN)
    return {"url": url, "token_env": "REWARD_TOKEN", "tokenizer": str(model), "label": 1}


def chat_scores(model: Path, chats: Sequence[Sequence[dict[str, str]]]) -> list[float]:
    """transformers' second score of each chat in the model's own template."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [tokenizer.apply_chat_template(list(chat), tokenize=False) for chat in chats]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return [scores[1] for scores in reference_scores(model, ids)]


def failed(reward: RewardModel, *samples: Sample) -> str:
    outcome = checked_scores(reward, samples or [sample("4")])[0]
    assert isinstance(outcome, Failure), outcome
    return outcome.reason


class TestRewardModel(RewardConformance):
    cases: ClassVar[Sequence[Case]] = (Case(sample("4"), 0.0), Case(sample("5, or perhaps 6"), 0.0))

    @pytest.fixture(autouse=True)
    def served(self, settings: dict[str, Any], model: Path) -> None:
        chats = [
            [{"role": "user", "content": "question"}, {"role": "assistant", "content": case.sample.text}]
            for case in self.cases
        ]
        wanted = chat_scores(model, chats)
        cases = tuple(Case(case.sample, one) for case, one in zip(self.cases, wanted, strict=True))
        type(self).cases = cases
        factory = "rlcore_remote.reward_model:RewardModel"
        type(self).part = RewardPart(
            name="reward_model", factory=factory, config=RewardModelConfig(**settings)
        )


def test_a_group_is_scored_as_chats_of_the_models_own_template(settings: dict[str, Any], model: Path) -> None:
    answers = ("4", "It is four, as everybody knows.", "")
    group = [sample(text, prompt=CHAT, index=index) for index, text in enumerate(answers)]
    found = RewardModel(RewardModelConfig(**settings)).score(group)
    wanted = chat_scores(model, [[*CHAT, {"role": "assistant", "content": text}] for text in answers])
    assert [score.value for score in found] == pytest.approx(wanted, abs=TOLERANCE)
    assert len({round(score.value, 4) for score in found}) == len(answers)
    (alone,) = RewardModel(RewardModelConfig(**settings, sigmoid=True)).score(group[:1])
    assert alone.value == pytest.approx(1 / (1 + math.exp(-wanted[0])), abs=TOLERANCE)


def test_a_template_in_its_place(settings: dict[str, Any], model: Path) -> None:
    config = RewardModelConfig(**{**settings, "tokenizer": "", "template": "Q {prompt} A {response}"})
    found = RewardModel(config).score([sample("4", prompt="2+2?"), sample("5", prompt=CHAT)])
    texts = ["Q 2+2? A 4", "Q system: Be brief.\n\nuser: 2+2? A 5"]
    ids = [AutoTokenizer.from_pretrained(model).encode(text) for text in texts]
    wanted = [scores[1] for scores in reference_scores(model, ids)]
    assert [score.value for score in found] == pytest.approx(wanted, abs=TOLERANCE)


def test_a_frozen_model_brings_its_tokenizer(settings: dict[str, Any], model: Path) -> None:
    config = RewardModelConfig(url="frozen:rm", label=1)
    RewardModel.check(config)
    at = config.served(settings["url"], TOKEN, str(model))
    assert RewardModel(at).score([sample("4")]) == RewardModel(RewardModelConfig(**settings)).score(
        [sample("4")]
    )


def test_what_does_not_fit_into_the_model_is_no_score(settings: dict[str, Any]) -> None:
    reason = failed(RewardModel(RewardModelConfig(**settings)), sample("4"), sample("4" * CONTEXT))
    assert "tokens) is longer than the model's context length (128 tokens)" in reason


def test_which_of_several_scores_counts(settings: dict[str, Any]) -> None:
    reward = RewardModel(RewardModelConfig(**{**settings, "label": None}))
    assert "the model gives 2 scores; label must say which of them counts" in failed(reward)
    reward = RewardModel(RewardModelConfig(**{**settings, "label": 2}))
    assert "label is 2, but the model gives 2 scores" in failed(reward)


def test_a_tokenizer_that_cannot_be_used(settings: dict[str, Any], tmp_path: Path, model: Path) -> None:
    config = RewardModelConfig(**{**settings, "tokenizer": str(tmp_path / "gone")})
    with pytest.raises(ModelError, match=r"gone: no such model directory\."):
        RewardModel.check(config)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has no chat template; give a template instead\."):
        RewardModel.check(RewardModelConfig(**{**settings, "tokenizer": str(tmp_path)}))
    with pytest.raises(ConfigError, match="'NOT_SET' is not set"):
        RewardModel.check(RewardModelConfig(**{**settings, "token_env": "NOT_SET"}))
