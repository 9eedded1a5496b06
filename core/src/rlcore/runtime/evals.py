"""The sets that a run is evaluated on: found before it starts, and given their rewards when it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlcore.api.errors import ConfigError, DataError, faults_of
from rlcore.api.part import Part, RewardPart
from rlcore.compose.evals import EvalSet
from rlcore.config.evals import EvalConfig
from rlcore.rollout.evaluate import Evaluation, sampling_of
from rlcore.rollout.rewards import RewardPool

if TYPE_CHECKING:
    from rlcore.api.generation import GroupScorer
    from rlcore.api.sources import Prompts
    from rlcore.api.types import Prompt
    from rlcore.compose.resolved import Inference, Resolved
    from rlcore.runtime.rollout_workers import RolloutWorkers


@dataclass(frozen=True, kw_only=True)
class PreparedEval:
    """An evaluation and its prompts."""

    settings: EvalSet
    prompts: Sequence[Prompt]

    @property
    def name(self) -> str:
        """Its name in metrics."""
        return self.settings.name


def held_out(resolved: Resolved, prompts: Prompts) -> tuple[PreparedEval, ...]:
    """The held-out sets of the source that is trained on: greedy, by exact match."""
    config = EvalConfig(score_by="exact_match")
    return tuple(
        PreparedEval(
            settings=EvalSet(name=name, config=config, source=resolved.source),
            prompts=rows[: resolved.run.evaluation.eval_prompts],
        )
        for name, rows in prompts.held_out.items()
    )


def asked_for(chosen: Inference, taken: Sequence[PreparedEval] = ()) -> tuple[PreparedEval, ...]:
    """The sets of `--eval`. Raises `UserError`; also where one has the name of a set of `taken`."""
    names = {eval_set.name for eval_set in taken}
    for eval_set in chosen.evals:
        if eval_set.name in names:
            raise ConfigError(
                f"--eval: found the name {eval_set.name!r}, which is that of the held-out set of what is "
                "trained on; give it another."
            )
    return tuple(_with_prompts(eval_set, chosen) for eval_set in chosen.evals)


def asked(source: Part, ask: Callable[[Any], Prompts]) -> Prompts:
    """The prompts that `ask` gets from the built source. Its faults are told as those of a plugin."""
    with faults_of(f"The source {source.name!r}"):
        return ask(source.build())


def _with_prompts(eval_set: EvalSet, chosen: Inference) -> PreparedEval:
    """The evaluation with the held-out prompts of its source; all prompts, if none is held out."""
    prompts = asked(eval_set.source, lambda source: source.prompts())
    rows = next(iter(prompts.held_out.values()), prompts.train)[
        : eval_set.config.prompts or chosen.run.evaluation.eval_prompts
    ]
    needs_label = eval_set.config.score_by == "exact_match" or not eval_set.judged_by(chosen.rewards)
    if needs_label and not any(prompt.label is not None for prompt in rows):
        raise DataError(
            f"--eval {eval_set.name}: no prompt has a label, so no answer can match one; expected labels, or "
            f"a reward with --eval.{eval_set.name}.reward."
        )
    return PreparedEval(settings=eval_set, prompts=rows)


async def evaluations(
    chosen: Inference,
    sets: Sequence[PreparedEval],
    pools: Sequence[tuple[tuple[RewardPart, ...], GroupScorer]],
    generators: RolloutWorkers,
    stack: AsyncExitStack,
    tokenizer: str,
) -> list[Evaluation]:
    """`sets` with their generators and rewards. `pools`: the rewards that are already there.

    The processes of further rewards are started, and end with `stack`. `tokenizer`: the directory of the
    run's, for rewards that ask for it.
    """
    known = list(pools)
    made = []
    for evaluation in sets:
        config = evaluation.settings.config
        # what a sample is worth, not what it is worth among siblings
        parts = tuple(replace(part, ranked=False) for part in evaluation.settings.judged_by(chosen.rewards))
        scorer = None
        if parts:
            scorer = next((pool for of, pool in known if of == parts), None) or await start_rewards(
                parts, chosen, stack, tokenizer
            )
            known.append((parts, scorer))
        made.append(
            Evaluation(
                name=evaluation.name,
                prompts=evaluation.prompts,
                generator=generators.of(evaluation.settings.generator or chosen.generator),
                scorer=scorer,
                sampling=sampling_of(config, chosen.run),
                samples=config.samples,
                exact=config.score_by == "exact_match",
                solved_at=config.solved_at,
            )
        )
    return made


async def start_rewards(
    parts: tuple[RewardPart, ...], chosen: Inference, stack: AsyncExitStack, tokenizer: str
) -> RewardPool:
    """The processes that score by `parts`; they end with `stack`."""
    run = chosen.run
    pool = RewardPool(
        parts,
        workers=run.rewards.reward_workers,
        timeout=run.rewards.reward_timeout,
        memory_gib=run.rewards.reward_memory_gib,
        plugin_files=chosen.plugin_files,
        tokenizer=tokenizer,
    )
    stack.callback(pool.stop)
    await pool.start()
    return pool
