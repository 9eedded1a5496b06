"""The sets that a run is evaluated on, found before it starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.api.errors import ConfigError, DataError, faults_of
from rlcore.api.part import Part
from rlcore.api.part_config import DataConfig
from rlcore.api.sources import Prompts
from rlcore.api.types import Prompt
from rlcore.compose.evals import EvalConfig, EvalSet
from rlcore.compose.resolved import Inference, Resolved
from rlcore.preparation.data_checks import check_source


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
    """The held-out sets of the source that is trained on, greedy. Those of a task with labels are scored by
    exact match; others, and those of the user's own data, by the reward, if the run has one.
    """
    most, source = resolved.run.evaluation.eval_prompts, resolved.source
    sets = {name: rows[:most] for name, rows in prompts.held_out.items()}
    exact, auto = EvalConfig(score_by="exact_match"), EvalConfig()
    by_match = () if isinstance(source.config, DataConfig) else sets
    labeled = {key for key in by_match if any(prompt.label is not None for prompt in sets[key])}
    evals = [EvalSet(name=key, config=exact if key in labeled else auto, source=source) for key in sets]
    return tuple(PreparedEval(settings=one, prompts=sets[one.name]) for one in evals)


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


def prompts_of(source: Part, ask: Callable[[Any], Prompts]) -> Prompts:
    """The prompts that `ask` gets from the built source. Its faults are told as those of a plugin."""
    whose = f"The source {source.name!r}"
    with faults_of(whose):
        prompts = ask(source.build())
        check_source(whose, prompts)  # here, for a lazy set may raise when it is read
    return prompts


def _with_prompts(eval_set: EvalSet, chosen: Inference) -> PreparedEval:
    """The evaluation with the held-out prompts of its source; all prompts, if none is held out."""
    prompts = prompts_of(eval_set.source, lambda source: source.prompts())
    count = eval_set.config.prompts or chosen.run.evaluation.eval_prompts
    rows = next(iter(prompts.held_out.values()), prompts.train)[:count]
    needs_label = eval_set.config.score_by == "exact_match" or not eval_set.judged_by(chosen.rewards)
    if needs_label and not any(prompt.label is not None for prompt in rows):
        raise DataError(
            f"--eval {eval_set.name}: no prompt has a label, so no answer can match one; expected labels, or "
            f"a reward with --eval.{eval_set.name}.reward."
        )
    return PreparedEval(settings=eval_set, prompts=rows)
