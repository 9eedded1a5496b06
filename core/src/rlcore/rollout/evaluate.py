"""Evaluation: answer the prompts of named sets and judge the answers, in a run or for `rlcore eval`."""

import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rlcore.api.errors import DataError
from rlcore.api.generation import GenerationClient, Generator, GroupScorer
from rlcore.api.producer import PromptEncoder
from rlcore.api.reward import accepted_answers, answer_of, answer_text
from rlcore.api.run_config import RunConfig
from rlcore.api.types import EVALUATION, GenerationStatus, Prompt, Sample, Sampling
from rlcore.rollout.context import EngineContext, Engines
from rlcore.rollout.draw import Draw, GroupOutcome, Versions
from rlcore.rollout.metrics import generator_means, part_means
from rlcore.rollout.pipeline import GroupPipeline


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A named set of prompts, how to answer them, and how to judge the answers.

    `scorer`: None: there is no reward. Then, and with `exact`, an answer counts if it matches the label
    exactly.
    """

    name: str
    prompts: Sequence[Prompt]
    generator: Generator
    scorer: GroupScorer | None
    sampling: Sampling
    samples: int = 1
    exact: bool = False
    solved_at: float = 1.0

    def score(self, sample: Sample) -> float:
        """The value of an answer. 0 if its generation or its scoring failed."""
        if self.exact or self.scorer is None:
            return float(is_exact(sample))
        return 0.0 if sample.score is None else sample.score.value


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The result of an `Evaluation`.

    `score`: mean over all answers. `samples`: the answers, in the order of the prompts. `metrics`:
    `reward_mean` (of answers with a reward), `response_length_mean`, `truncated` and `unscored` (shares of
    the answers), `reward/<part>`, `generator/<name>`; with several answers to a prompt also `avg@<n>` and
    `pass@<k>`.
    """

    score: float
    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]


@dataclass(kw_only=True, eq=False)
class Evaluator:
    """Evaluates `sets`, one after the other, on the engines behind `clients`.

    `in_step`: the requests begin together (see `Engines.for_each`), so that evaluations repeat exactly.
    """

    run: RunConfig
    encoder: PromptEncoder
    clients: Sequence[GenerationClient]
    sets: Sequence[Evaluation]
    in_step: bool = True

    def __post_init__(self) -> None:
        run = self.run
        limits = [each.sampling.max_tokens for each in self.sets]
        self._engines = Engines(
            self.clients,
            self.encoder.tokenizer,
            run.serving.engine_concurrency,
            name=EVALUATION,
            context_length=run.sampling.max_prompt_tokens
            + max(limits, default=run.sampling.max_response_tokens),
        )

    async def evaluate(self, version: int) -> dict[str, EvalResult]:
        """The result of each set by its name. `version`: of the weights that must have made every answer.

        If not a single prompt could be answered, raises the error of the engine or of the generator.
        """
        return {evaluation.name: await self._evaluate(evaluation, version) for evaluation in self.sets}

    async def _evaluate(self, evaluation: Evaluation, version: int) -> EvalResult:
        if not evaluation.prompts:
            raise DataError(f"The set {evaluation.name!r} has no prompts to evaluate on.")
        pipeline = GroupPipeline(
            run=self.run,
            encoder=self.encoder,
            generator=evaluation.generator,
            rewards=evaluation.scorer or NoReward(),
        )
        versions, count = Versions(oldest=version, newest=version), evaluation.samples

        def make(draw: Draw, contexts: Sequence[EngineContext]) -> Coroutine[Any, Any, GroupOutcome]:
            return pipeline.make(draw, contexts[0], lambda: versions, count=count, prefix=EVALUATION)

        outcomes = await self._engines.for_each(
            [Draw(group_id=row, prompt=prompt, epoch=0) for row, prompt in enumerate(evaluation.prompts)],
            make,
            [evaluation.sampling],
            pipeline.rewards,
            # A barrier holds one request for each context, the first. A generator that makes the samples of a
            # group one by one sends several.
            in_step=pipeline.by_group and self.in_step,
        )
        # an answer that no reward could judge is still one
        errors = [outcome.error for outcome in outcomes if outcome.error and not outcome.is_answered]
        if errors and len(errors) == len(outcomes):
            raise errors[0]
        return result(evaluation, [outcome.group.samples for outcome in outcomes])


class NoReward:
    """The scorer of an evaluation without a reward: it leaves every sample as it is."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """`samples`."""
        return samples


def result(evaluation: Evaluation, groups: Sequence[Sequence[Sample]]) -> EvalResult:
    """The result of an evaluation. `groups`: the samples of each prompt."""
    # The last sample of a trajectory holds its answer.
    answers = [{sample.rollout_id: sample for sample in samples}.values() for samples in groups]
    scores = [[evaluation.score(answer) for answer in of_prompt] for of_prompt in answers]
    every = [answer for of_prompt in answers for answer in of_prompt]
    score = fmean([value for of_prompt in scores for value in of_prompt])
    metrics = {
        "response_length_mean": fmean([len(answer.response_ids) for answer in every]),
        "truncated": fmean([answer.status is GenerationStatus.TRUNCATED for answer in every]),
    }
    if evaluation.samples > 1:
        metrics[f"avg@{evaluation.samples}"] = score
        metrics |= passes(scores, evaluation.samples, evaluation.solved_at)
    if evaluation.scorer is not None:
        rewards = [answer.score.value for answer in every if answer.score is not None]
        metrics |= {"reward_mean": fmean(rewards)} if rewards else {}
        metrics["unscored"] = fmean([answer.score is None for answer in every])
    return EvalResult(
        score=score,
        samples=tuple(sample for samples in groups for sample in samples),
        metrics=metrics | part_means(every) | generator_means(every),
    )


def eval_metrics(results: Mapping[str, EvalResult]) -> dict[str, float]:
    """`eval/<set>/…` of each set by its name."""
    return {
        f"eval/{name}/{key}": value
        for name, result in results.items()
        for key, value in {"score": result.score, **result.metrics}.items()
    }


def passes(scores: Sequence[Sequence[float]], n: int, solved_at: float) -> dict[str, float]:
    """`pass@<k>` for the powers of two up to `n`, and for `n`: the mean over the prompts."""
    solved = [sum(value >= solved_at for value in of_prompt) for of_prompt in scores]
    sizes = sorted({2**power for power in range(n.bit_length())} | {n})
    return {f"pass@{k}": fmean([pass_at_k(n, c, k) for c in solved]) for k in sizes}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of `k` answers is right, by `c` right ones of `n`: 1 - C(n-c, k) / C(n, k).

    Without bias, unlike 1 - (1 - c/n)^k (https://arxiv.org/abs/2107.03374, section 2.1); computed exactly.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def is_exact(sample: Sample) -> bool:
    """Whether a finished response is an accepted answer of its label, thoughts of both aside.

    False where the label has none.
    """
    if sample.status is not GenerationStatus.COMPLETED:
        return False
    try:
        accepted = accepted_answers(sample.prompt.label)
    except ValueError:
        return False
    return answer_of(sample).strip() in {answer_text(answer).strip() for answer in accepted}
