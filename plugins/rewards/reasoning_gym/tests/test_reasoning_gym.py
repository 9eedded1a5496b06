"""The tasks of reasoning-gym: what they ask, how they are split, and what their verifiers say."""

import subprocess
import sys
from typing import Any, ClassVar

from refusals import Case as Refusal, cases

from rlcore import DataError, Prompt, RewardPart, Sample, Score
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_reasoning_gym.config import ReasoningGymConfig, ReasoningGymRewardConfig
from rlcore_reasoning_gym.reward import ReasoningGymReward
from rlcore_reasoning_gym.source import ReasoningGym
from rlcore_testing.rewards import Case, RewardConformance, sample

SMALL: dict[str, Any] = {
    "datasets": ("chain_sum", "spell_backward"),
    "size": 60,
    "settings": {"chain_sum": {"max_terms": 3}},
}


def prompts(**settings: Any) -> list[Prompt]:
    found = ReasoningGym(ReasoningGymConfig(**{**SMALL, **settings})).prompts()
    return [*found.train, *(prompt for rows in found.held_out.values() for prompt in rows)]


def answer(prompt: Prompt, text: str) -> Sample:
    return sample(text, prompt.label, metadata=prompt.metadata)


ASKED = prompts()[0]


class TestReasoningGym(RewardConformance):
    part = RewardPart(
        name="reasoning_gym",
        factory="rlcore_reasoning_gym.reward:ReasoningGymReward",
        config=ReasoningGymRewardConfig(),
    )
    parts = frozenset({"solved"})
    cases: ClassVar = (
        Case(answer(ASKED, str(ASKED.label)), 1.0),
        Case(answer(ASKED, f"<think>\n\n</think>\n\n{ASKED.label}"), 1.0),
        Case(answer(ASKED, f"So <answer> {ASKED.label}\n</answer>."), 1.0),
        Case(answer(ASKED, "I don't know"), 0.0),
        Case(sample("4", "4"), None),
    )


def test_every_entry_is_a_prompt_on_one_side() -> None:
    found = ReasoningGym(ReasoningGymConfig(**SMALL)).prompts()
    assert set(found.held_out) == {"chain_sum", "spell_backward"}
    held_out = {str(prompt.text) for rows in found.held_out.values() for prompt in rows}
    assert not held_out & {str(prompt.text) for prompt in found.train}
    assert sorted(prompt.prompt_id for prompt in prompts()) == sorted(
        f"{name}:{index}" for name in SMALL["datasets"] for index in range(60)
    )


def test_prompts_are_the_same_each_time_and_of_another_seed_others() -> None:
    assert prompts() == prompts()
    assert prompts() != prompts(dataset_seed=1)


def test_a_right_answer_scores_1_and_a_wrong_one_less() -> None:
    reward = ReasoningGymReward(ReasoningGymRewardConfig())
    for prompt in prompts():
        right = reward.score(
            [answer(prompt, str(prompt.label)), answer(prompt, f"Hm. <answer>{prompt.label}</answer>")]
        )
        assert right == [Score(value=1.0, parts={"solved": 1.0})] * 2
        [wrong] = reward.score([answer(prompt, "I don't know")])
        assert wrong.value < 0.5
        assert wrong.parts == {"solved": 0.0}


def test_a_prompt_of_another_source_is_no_score() -> None:
    [outcome] = checked_scores(ReasoningGymReward(ReasoningGymRewardConfig()), [sample("4", "4")])
    assert isinstance(outcome, Failure)
    assert "none of the source reasoning_gym" in outcome.reason


def test_questions_are_chats_or_plain_text() -> None:
    chat = prompts(system="Be brief.")[0].text
    assert [message["role"] for message in chat if not isinstance(message, str)] == ["system", "user"]
    plain = prompts(chat=False, suffix="\nAnswer: ")[0].text
    assert isinstance(plain, str)
    assert plain.endswith("\nAnswer: ")


@cases("reasoning gym")
def test_what_reasoning_gym_has_not_is_refused(case: Refusal) -> None:
    with case.refused(DataError):
        prompts(**case.given)


def test_the_refusal_without_the_package_has_the_pip_line() -> None:
    script = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from rlcore.api.errors import PluginError\n"
        "from rlcore.api.part import Part\n"
        "import rlcore_reasoning_gym.plugin\n"
        "try: Part(name='reasoning_gym', factory='rlcore_reasoning_gym.source:ReasoningGym').load()\n"
        "except PluginError as error: print(error)\n"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert 'pip install "rlcore-reasoning-gym[tasks]"' in done.stdout
