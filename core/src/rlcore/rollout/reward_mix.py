"""Several rewards as one: which of them score a prompt's samples, and the weighted sum of what they say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

from rlcore.api.errors import DataError, PluginError, ended
from rlcore.api.part import RewardPart
from rlcore.api.tokens import CHECKED_AHEAD, Tokenizer
from rlcore.api.types import Json, Prompt, Sample, Score
from rlcore.rollout.score_check import Failure, ScoreOrFailure, checked_scores, failure_of

CHOICE = "reward"
"""In a prompt's metadata: the name, or a list of names, of the rewards that score its samples."""


class RewardMix:
    """The rewards of a run, built in the process that makes it.

    Raises `PluginError` where one cannot be built.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        tokenizer: Tokenizer | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`tokenizer`: of the run, where one of the rewards asks for it. `settings`: of the run, by name."""
        self._parts = {part.name: part for part in parts}
        arguments = {"tokenizer": tokenizer, "settings": settings or {}}
        self._rewards: Mapping[str, Any] = {part.name: _built(part, arguments) for part in parts}

    def score(self, samples: Sequence[Sample]) -> list[ScoreOrFailure]:
        """For each sibling of one group the sum of what the rewards that apply say, or the first Failure.

        With several rewards, the sum has each one's own value as the part `<reward>`, and its parts as
        `<reward>/<part>`. The own value of a single one that is ranked is the part `value`.
        """
        try:
            names = choice(samples[0].prompt, list(self._rewards))
        except DataError as error:
            return [failure_of(error)] * len(samples)
        # Of each reward, what it says of every sample, and what that adds to the sum.
        judged: dict[str, list[tuple[ScoreOrFailure, ScoreOrFailure]]] = {}
        for name in names:
            part = self._parts[name]
            scores = checked_scores(self._rewards[name], samples, part.config.value_range)
            added = [_scaled(outcome, part.weight) for outcome in (ranked(scores) if part.ranked else scores)]
            judged[name] = list(zip(scores, added, strict=True))
        if len(self._rewards) == 1:
            [(name, pairs)] = judged.items()
            return [_with_value(*pair) if self._parts[name].ranked else pair[1] for pair in pairs]
        return [
            _sum(sample, {name: pairs[place] for name, pairs in judged.items()})
            for place, sample in enumerate(samples)
        ]


def _sum(sample: Sample, judged: Mapping[str, tuple[ScoreOrFailure, ScoreOrFailure]]) -> ScoreOrFailure:
    """`judged`: of each reward, what it says of `sample`, and what that adds."""
    scores: list[Score] = []
    parts: dict[str, float] = {}
    for name, (score, added) in judged.items():
        if isinstance(score, Failure):
            return replace(score, kind=f"{name} {score.kind}", reason=f"{name}: {score.reason}")
        assert isinstance(added, Score), "a score adds a score"
        if score.applies:
            parts |= {name: score.value, **{f"{name}/{part}": x for part, x in score.parts.items()}}
            scores.append(added)
    # `fsum` rounds once, so the order of `--reward` flags does not show in the last bit.
    value = math.fsum(score.value for score in scores)
    per_token = _per_token(sample, scores)
    return Score(value=value, per_token=per_token, parts=parts, applies=bool(scores))


def _built(part: RewardPart, arguments: Mapping[str, Any]) -> Any:
    try:
        return part.build(**arguments)
    except Exception as error:
        sentence = ended(f"Reward {part.name!r} cannot be built: {failure_of(error).reason}")
        raise PluginError(sentence) from error


def ranked(outcomes: Sequence[ScoreOrFailure]) -> list[ScoreOrFailure]:
    """Each score as the share of its siblings' that it is above, from 0 to 1; an equal one counts half.

    Siblings without a score count for nothing, and a score without siblings stays what it is. Rewards of
    tokens are not kept.
    """
    values = [outcome.value for outcome in outcomes if isinstance(outcome, Score) and outcome.applies]
    if len(values) < 2:
        return list(outcomes)

    def rank(value: float) -> float:
        below, equal = sum(other < value for other in values), values.count(value) - 1
        return (below + equal / 2) / (len(values) - 1)

    return [
        outcome
        if isinstance(outcome, Failure) or not outcome.applies
        else replace(outcome, value=rank(outcome.value), per_token=None)
        for outcome in outcomes
    ]


def _with_value(score: ScoreOrFailure, added: ScoreOrFailure) -> ScoreOrFailure:
    if isinstance(score, Failure) or isinstance(added, Failure):
        return added
    return replace(added, parts={**added.parts, "value": score.value})


def _scaled(outcome: ScoreOrFailure, weight: float) -> ScoreOrFailure:
    """A score times `weight`, its parts aside, which are what they are."""
    if isinstance(outcome, Failure) or weight == 1:
        return outcome
    tokens = outcome.per_token
    scaled = None if tokens is None else tuple(weight * token for token in tokens)
    return replace(outcome, value=weight * outcome.value, per_token=scaled)


def _per_token(sample: Sample, scores: Sequence[Score]) -> tuple[float, ...] | None:
    """The sum over tokens; of a score without rewards of tokens, its value on the last live one."""
    if all(score.per_token is None for score in scores):
        return None
    live = [place for place, mask in enumerate(sample.loss_mask) if mask]
    total = [0.0] * len(sample.response_ids)
    for score in scores:
        if score.per_token is not None:
            total = [left + right for left, right in zip(total, score.per_token, strict=True)]
        elif live:
            total[live[-1]] += score.value
    return tuple(total)


def choice(prompt: Prompt, names: Sequence[str]) -> Sequence[str]:
    """Those of `names` that score the samples of `prompt`: all, unless its metadata names some.

    Raises `DataError` where the metadata names none, or another one.
    """
    if CHOICE not in prompt.metadata:
        return names
    chosen: Json = prompt.metadata[CHOICE]
    chosen = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(chosen, list | tuple) or not chosen or not all(name in names for name in chosen):
        raise DataError(
            f"The prompt {prompt.prompt_id!r} has the metadata {CHOICE} {prompt.metadata[CHOICE]!r}, "
            f"expected one or several of the run's rewards ({', '.join(names)}); --reward adds one."
        )
    return [name for name in names if name in chosen]


def check_choices(
    prompts: Sequence[Prompt], parts: Sequence[RewardPart], columns: Sequence[str] = ()
) -> None:
    """Raises `DataError` for the first prompt that a reward cannot judge. `columns`: those of its row.

    Its metadata names one that the run has not, or it lacks the label that one compares with, or one says why
    (`rlcore.AskingReward`).
    """
    looked_at = prompts if isinstance(prompts, list | tuple) else islice(prompts, CHECKED_AHEAD)
    names = [part.name for part in parts]
    chosen = [(prompt, choice(prompt, names)) for prompt in looked_at if parts]
    for part in parts:
        judged = [prompt for prompt, rewards in chosen if part.name in rewards]
        complain = getattr(part.load(), "prompt_complaints", lambda config, judged: repeat(""))
        for prompt, complaint in zip(judged, complain(part.config, judged), strict=False):
            if part.config.needs_label and prompt.label is None:
                complaint = "its label is missing or null (--source.label-key names the key)."
                complaint += f" Found {', '.join(map(repr, columns))}." if columns else ""
            if complaint:
                whose = f"The reward {part.name!r} cannot judge the prompt {prompt.prompt_id!r}"
                raise DataError(f"{whose}: {ended(complaint)}")


def check_machine(part: RewardPart) -> None:
    """Lets a reward that has a `check` refuse this machine (`rlcore.CheckedReward`)."""
    check = getattr(part.load(), "check", None)
    if check is not None:
        check(part.config)
