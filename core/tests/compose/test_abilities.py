"""A trainer says what it can; rlcore refuses a run that asks for more, before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest

from rlcore import Ability, ConfigError
from rlcore.compose.abilities import LACKS
from rlcore.compose.resolved import Resolved

KL = {"kl_coef": "0.1"}
CRITIC = {"advantage": "judge", "value_loss": "square"}
DEMANDS: list[tuple[Ability, dict[str, Any], str]] = [
    (Ability.RANKS, {"ranks": "2"}, "--ranks: found 2"),
    (Ability.RANKS, {**KL, "reference.ranks": "2", "ranks": "1"}, "--reference.ranks: found 2"),
    (Ability.VALUES, CRITIC, "--advantage: found 'judge', which reads a critic"),
    (Ability.SCORERS, KL, "--kl-coef: found 0.1"),
    (Ability.SCORERS, {"loss": "near"}, "--loss: found 'near', which reads a reference"),
    (Ability.SCORERS, {"distill_coef": "0.5", "teacher.model": "/x"}, "--distill-coef: found 0.5"),
    (Ability.OWN_RANKS, {**CRITIC, "critic.ranks": "1"}, "--critic.ranks: found 1"),
    (
        Ability.SWAPPED,
        {**KL, "reference.placement": "swapped"},
        "--reference.placement: found swapped",
    ),
    (Ability.REFRESH, {**KL, "reference.refresh_every": "2"}, "--reference.refresh-every: found 2"),
    (Ability.SLEEP, {"sleep": "all"}, "--sleep: found all"),
    (Ability.ROUTING_REPLAY, {"replay_routing": "true"}, "--replay-routing: found true"),
    (Ability.INDEXER_REPLAY, {"replay_indexer": "true"}, "--replay-indexer: found true"),
    (
        Ability.TOP_TOKENS,
        {"loss": "taught", "loss.top": "2", "teacher.model": "/x"},
        "--loss: found 'taught', which compares the likeliest tokens",
    ),
    (Ability.MODEL_HOOKS, {"model_hook": ["look"]}, "--model-hook: found 'look'"),
    (Ability.OWN_WEIGHTS, {"weights": "/x"}, "--weights: found /x"),
    (Ability.ADAPTERS, {"lora.rank": "8"}, "--lora.rank: found 8"),
    (Ability.ADAPTERS, {"lora.from": "/x"}, "--lora.from: found /x"),
    (
        Ability.POLICIES,
        {"lora.rank": "8", "lora.publish": "adapter", "policy.other.lr": "1e-4"},
        "--policy.other: found a further policy",
    ),
]


def test_every_ability_has_a_run_that_asks_for_it() -> None:
    assert {ability for ability, _, _ in DEMANDS} == set(Ability) == set(LACKS)


def test_a_trainer_that_declares_nothing_trains_a_policy_on_one_rank(
    make_with_roles: Callable[..., Resolved],
) -> None:
    assert make_with_roles({"trainer": "bare"}).run.ranks == 1


@pytest.mark.parametrize(("ability", "flags", "found"), DEMANDS)
def test_one_sentence_names_the_flag_the_trainer_and_what_it_lacks(
    make_with_roles: Callable[..., Resolved],
    monkeypatch: pytest.MonkeyPatch,
    ability: Ability,
    flags: dict[str, Any],
    found: str,
) -> None:
    config = type(make_with_roles({"trainer": "bare"}).trainer.config)
    monkeypatch.setattr(config, "abilities", frozenset(Ability) - {ability})
    with pytest.raises(ConfigError) as refusal:
        make_with_roles({"trainer": "bare", **flags})
    sentence = str(refusal.value)
    assert sentence.startswith(f"{found}, but the trainer 'bare' {LACKS[ability]}; ")
    assert sentence.endswith(", or choose another --trainer.")
    monkeypatch.setattr(config, "abilities", frozenset(Ability))
    assert make_with_roles({"trainer": "bare", **flags}).trainer.name == "bare"
