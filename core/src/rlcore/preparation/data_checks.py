"""Checks of the prompts of a run: of all that is trained and evaluated on, before a process starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from rlcore.api.columns import TrainsOn
from rlcore.api.errors import DataError, PluginError, described, returned
from rlcore.api.sources import PairSource, Prompts, PromptSource, ResponseSource
from rlcore.api.tokens import CHECKED_AHEAD
from rlcore.api.types import Prompt
from rlcore.rollout.columns import check_metadata
from rlcore.rollout.generators import check_policies
from rlcore.rollout.reward_mix import check_choices, check_machine

if TYPE_CHECKING:
    from rlcore.api.part import RewardPart
    from rlcore.api.part_config import ProducerConfig
    from rlcore.api.run_config import RunConfig
    from rlcore.compose.resolved import Inference, Resolved
    from rlcore.data.prompt_tokenizer import PromptTokenizer
    from rlcore.preparation.eval_sets import PreparedEval
    from rlcore.rollout.generators import Generators


_SHOWN = 10
_log = logging.getLogger(__name__)


def check_source(whose: str, prompts: object) -> None:
    """PluginError where the source `whose` returned something else than `Prompts` to draw from.

    Of each set the first `CHECKED_AHEAD` prompts are looked at.
    """
    offered = returned(whose, prompts, Prompts, "Prompts")
    _check_set(whose, "`train`", offered.train)
    _expect(Mapping, whose, "`held_out`", offered.held_out, "sets of prompts by name")
    for name, rows in offered.held_out.items():
        _check_set(whose, f"the held-out set {name!r}", rows)


def _check_set(whose: str, name: str, rows: Iterable[Prompt]) -> None:
    is_sequence = hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not isinstance(rows, Mapping)
    _expect(Iterable if is_sequence else Sequence, whose, name, rows, "a sequence of prompts, such as a list")
    seen: set[str] = set()
    for number, prompt in enumerate(islice(rows, CHECKED_AHEAD)):
        _expect(Prompt, whose, f"number {number} of {name}", prompt, "a Prompt")
        title = f"the prompt {prompt.prompt_id!r} of {name}"
        _expect(str, whose, f"the id of number {number} of {name}", prompt.prompt_id, "a text")
        _expect(Sequence, whose, f"the text of {title}", prompt.text, "a text or a list of messages")
        if prompt.prompt_id in seen:
            raise PluginError(f"{whose} returned {title} twice; expected ids that no other prompt of it has.")
        seen.add(prompt.prompt_id)


def _expect(kind: type, whose: str, what: str, found: object, expected: str) -> None:
    """PluginError where `what` of a source is no `kind`."""
    if not isinstance(found, kind):
        raise PluginError(f"{whose} returned {described(found)} as {what}; expected {expected}.")


def train_sets(resolved: Resolved, train: Sequence[Prompt]) -> dict[str, Sequence[Prompt]]:
    """The prompts to train on, by a name for errors: one set for each source of a mix."""
    from rlcore.data.source_mix import SourceMix

    if isinstance(train, SourceMix):
        return {f"--data {portion.name}": portion.prompts for portion in train.portions}
    return {str(resolved.flat().get("data") or f"--task {resolved.source.name}"): train}


def named(evals: Sequence[PreparedEval]) -> dict[str, Sequence[Prompt]]:
    """The prompts of each evaluation, by a name for errors."""
    return {f"held-out set {evaluation.name!r}": evaluation.prompts for evaluation in evals}


def check_prompts(
    encoder: PromptTokenizer,
    run: RunConfig,
    sets: Mapping[str, Sequence[Prompt]],
    producer: ProducerConfig | None = None,
) -> None:
    """Check that each prompt fits, for the producer too. Raises `DataError` naming the set."""
    for where, rows in sets.items():
        with _faults_of(where):
            encoder.check(rows)
            if producer is not None:
                producer.check_prompts(rows, encoder.tokenizer, run)
        if unknown := encoder.unknown(rows):
            shown = " ".join(map(repr, unknown[:_SHOWN])) + (" …" if len(unknown) > _SHOWN else "")
            _log.warning(
                "%s: the tokenizer has no token for %s: the model cannot see that text, nor write it.",
                where,
                shown,
            )


def check_columns(run: RunConfig, sets: Mapping[str, Sequence[Prompt]]) -> None:
    """Check that the prompts have the numbers of --metadata-columns. Raises `DataError` naming the set."""
    for where, rows in sets.items():
        with _faults_of(where):
            check_metadata(islice(rows, CHECKED_AHEAD), run.data.metadata_columns)


@contextmanager
def _faults_of(where: str) -> Iterator[None]:
    """Within, a `DataError` names the set `where`."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def check_evals(
    generators: Generators, chosen: Inference, evals: Sequence[PreparedEval], encoder: PromptTokenizer
) -> None:
    """Check that the generator of each evaluation can answer its prompts, and its rewards can judge them."""
    for evaluation in evals:
        check_rewards(evaluation.settings.judged_by(chosen.rewards), named([evaluation]))
        generator = evaluation.settings.generator or chosen.generator
        generators.check(generator, evaluation.prompts, encoder.tokenizer)
        with _faults_of(f"held-out set {evaluation.name!r}"):
            check_policies(generator.config, chosen.run.policies, evaluation.prompts, trains=False)


def check_rewards(
    rewards: Sequence[RewardPart], sets: Mapping[str, Sequence[Prompt]], columns: Sequence[str] = ()
) -> None:
    """Check that this machine has what `rewards` need, and that they can judge the prompts of `sets`.

    `columns`: those of their rows.
    """
    for part in rewards:
        check_machine(part)
    for where, rows in sets.items():
        with _faults_of(where):
            check_choices(rows, rewards, columns)


def train_prompts(source: PromptSource, resolved: Resolved) -> Prompts:
    """The prompts, with the responses that the recipe trains on."""
    wanted, name = resolved.trains_on, resolved.source.name
    if wanted is TrainsOn.ROLLOUTS:
        return source.prompts()
    if wanted is TrainsOn.RESPONSES and isinstance(source, ResponseSource):
        return source.with_responses()
    if wanted is TrainsOn.PAIRS and isinstance(source, PairSource):
        return source.with_pairs()
    kind, keys = "responses", "prompt and response"
    if wanted is TrainsOn.PAIRS:
        kind, keys = "pairs of responses", "prompt, chosen and rejected"
    raise DataError(
        f"--algo {resolved.algorithm} trains on {wanted}, but the source {name!r} offers no {kind}; "
        f"give --data FILE with {keys} in each row."
    )
