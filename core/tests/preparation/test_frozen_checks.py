"""Models of `--frozen` that are not fit for what asks them are refused before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inputs import make_model
from runs import run_of

from rlcore.api.errors import UserError
from rlcore.preparation.role_models import prepare_frozen
from rlcore_qwen.tiny import tiny
from rlcore_testing.reward_models import CONTEXT, make_reward_model

Flags = dict[str, Any]


def judged(path: object) -> Flags:
    return {"frozen": [f"judge={path}"], "reward": ["judge"], "reward.judge.url": "frozen:judge"}


def taught(path: object) -> Flags:
    return {"frozen": [f"t={path}"], "distill_coef": "0.1", "teacher.url": "frozen:t"}


def scored(path: object, **settings: str) -> Flags:
    asked = {f"reward.reward_model.{name}": value for name, value in settings.items()}
    return {
        "frozen": [f"rm={path}"],
        "reward": ["reward_model"],
        "reward.reward_model.url": "frozen:rm",
        **asked,
    }


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("policy") / "model", seed=0)


@pytest.fixture
def changed(policy: Path, tmp_path: Path) -> Callable[..., Path]:
    """`changed(file, **settings)`: a copy of the policy with other settings in that file; None: left out."""

    def change(file: str, **settings: Any) -> Path:
        copy = Path(shutil.copytree(policy, tmp_path / "copy"))
        found = {**json.loads((copy / file).read_text()), **settings}
        (copy / file).write_text(json.dumps({key: one for key, one in found.items() if one is not None}))
        return copy

    return change


def refusal(flags: Flags, policy: Path) -> str:
    with pytest.raises(UserError) as caught:
        prepare_frozen(run_of("grpo", flags), policy)
    return str(caught.value)


def test_what_fits(policy: Path) -> None:
    (judge,) = prepare_frozen(run_of("grpo", judged(policy)), policy)
    assert (judge.name, judge.path, judge.fields) == ("judge", str(policy), {})
    (teacher,) = prepare_frozen(run_of("grpo", taught(policy)), policy)
    assert teacher.name == "t"


def test_a_directory_that_is_not_there(policy: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert refusal(judged(gone), policy) == (
        f"--frozen judge={gone}: found '{gone}', which is no directory, nor a hub id (OWNER/NAME)."
    )
    gone.mkdir()
    said = refusal(judged(gone), policy)
    assert said.startswith(f"--frozen judge={gone}: {gone}/config.json: No such file")


def test_a_judge_without_a_chat_template(policy: Path, changed: Callable[..., Path]) -> None:
    path = changed("tokenizer_config.json", chat_template=None)
    assert refusal(judged(path), policy) == (
        f"--frozen judge={path}: its tokenizer has no chat template, which --reward.judge.url needs; "
        "expected a model for chats."
    )
    prepare_frozen(run_of("grpo", taught(path)), policy)  # a teacher needs none


def test_a_teacher_with_a_short_context(policy: Path, changed: Callable[..., Path]) -> None:
    path = changed("config.json", max_position_embeddings=16)
    assert refusal(taught(path), policy) == (
        f"--frozen t={path}: its context is 16 tokens, expected at least 40, the longest sample "
        "it scores (--max-prompt-tokens plus --max-response-tokens)."
    )


def test_a_teacher_with_other_tokens(policy: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other")
    said = refusal(taught(other), policy)
    assert said.startswith(f"--frozen t={other}: its vocabulary differs in ")
    assert said.endswith("expected a model with the same tokenizer.")


def test_weights_that_are_not_there(policy: Path, changed: Callable[..., Path]) -> None:
    path = changed("config.json")
    (path / "model.safetensors").unlink()
    assert refusal(judged(path), policy) == f"{path}: holds no weights, expected *.safetensors files."


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reward_model(tmp_path_factory.mktemp("rewards") / "model")


def test_a_reward_model_gives_scores_alone(rewards: Path, policy: Path) -> None:
    (model,) = prepare_frozen(run_of("grpo", scored(rewards)), policy)
    assert (model.name, model.classifier) == ("rm", True)
    for flags, at, asked, what in (
        (judged(rewards), "judge", "--reward.judge.url", "chats"),
        (taught(rewards), "t", "--teacher.url", "log-probs of tokens"),
    ):
        assert refusal(flags, policy) == (
            f"--frozen {at}={rewards}: it is a Qwen2ForSequenceClassification, which gives scores, but "
            f"{asked} asks it for {what}; expected a language model."
        )


def test_a_language_model_gives_no_scores(policy: Path) -> None:
    assert refusal(scored(policy), policy) == (
        f"--frozen rm={policy}: it gives tokens, but --reward.reward-model.url asks it for scores; expected "
        "a reward model, whose config.json names an architecture such as Qwen3ForSequenceClassification."
    )


def changed_rewards(rewards: Path, to: Path, file: str = "config.json", **settings: Any) -> Path:
    copy = Path(shutil.copytree(rewards, to))
    found = {**json.loads((copy / file).read_text()), **settings}
    (copy / file).write_text(json.dumps(found))
    return copy


def test_a_reward_model_that_does_not_fit(rewards: Path, policy: Path, tmp_path: Path) -> None:
    short = changed_rewards(rewards, tmp_path / "short", max_position_embeddings=16)
    assert "its context is 16 tokens, expected at least 40" in refusal(scored(short), policy)
    other = changed_rewards(rewards, tmp_path / "other", architectures=["Qwen2ForRewardModel"])
    assert refusal(scored(other), policy).startswith("--engine local: found a Qwen2ForRewardModel, but of")
    encoder = changed_rewards(rewards, tmp_path / "encoder", architectures=["BertForSequenceClassification"])
    assert refusal(scored(encoder), policy).endswith(
        "transformers' decoders (Qwen3ForSequenceClassification, …)."
    )
    several = make_reward_model(tmp_path / "several", num_labels=3, max_position_embeddings=CONTEXT)
    assert refusal(scored(several), policy) == (
        f"--frozen rm={several}: it gives 3 scores; say by --reward.reward-model.label which of them "
        "counts, from 0."
    )
    prepare_frozen(run_of("grpo", scored(several, label="2")), policy)
    said = refusal(scored(several, label="3"), policy)
    assert said.endswith("--reward.reward-model.label is 3, but it gives 3 scores, the first of them 0.")
    said = refusal(scored(rewards, label="1"), policy)
    assert said.endswith("--reward.reward-model.label is 1, but it gives one score, 0.")
    one = changed_rewards(several, tmp_path / "one", id2label={"0": "x"})
    assert "the weight 'score.weight' is (3, 32), but its config.json calls for (1, 32)" in refusal(
        scored(one), policy
    )


def test_a_reward_model_without_a_chat_template(rewards: Path, policy: Path, tmp_path: Path) -> None:
    plain = changed_rewards(rewards, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((plain / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    said = refusal(scored(plain), policy)
    assert "its tokenizer has no chat template, which --reward.reward-model.url" in said
    assert said.endswith("or the text to score by --reward.reward-model.template.")
    prepare_frozen(run_of("grpo", scored(plain, template="{prompt}{response}")), policy)
