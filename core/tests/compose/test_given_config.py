"""Recipes that train on given responses: which parts a run has, and which settings are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.api.inputs import Input, TrainsOn
from rlcore.api.records import Kind
from rlcore.compose.resolve import resolve
from rlcore.compose.resolved import Resolved
from rlcore.compose.select import select
from rlcore.config import toml
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load

Make = Callable[..., Resolved]


@pytest.fixture(scope="module")
def bundled() -> Plugins:
    return load(Switches())


@pytest.fixture
def run_of(bundled: Plugins) -> Make:
    """`run_of(algorithm, flags, file)`: the resolved run of the bundled plugins."""

    def run_of(algorithm: str, flags: dict[str, Any] | None = None, file: Path | None = None) -> Resolved:
        layer = Layer(label=file.name, values=toml.read_settings(file)) if file else None
        values = {"algo": algorithm, "model": "qwen3", "engine": "local", **(flags or {})}
        chosen = select(bundled.registry, layer, Layer(label="", values=values))
        return resolve(chosen)

    return run_of


def test_there_is_a_loss_and_none_of_what_works_on_rollouts(run_of: Make) -> None:
    found = run_of("sft", {"task": "reverse"})
    assert found.trains_on is TrainsOn.RESPONSES
    assert (found.loss.name, found.generator.name) == ("sft", "single_turn")
    assert (found.advantage, found.rewards, found.value_loss) == (None, (), None)
    assert (found.filters, found.corrections, found.needs) == ((), (), frozenset())
    assert (found.run.data.group_size, found.run.loss.normalizer, found.run.loss.entropy_coef) == (
        1,
        "per_token",
        0,
    )
    pairs = run_of("dpo")
    assert (pairs.trains_on, pairs.run.data.group_size) == (TrainsOn.PAIRS, 2)
    assert pairs.needs == {Input.REFERENCE_LOG_PROBS}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_what_it_writes_gives_the_same_run(run_of: Make, tmp_path: Path, algorithm: str) -> None:
    run, file = run_of(algorithm, {"minibatches": "2"}), tmp_path / "run.toml"
    file.write_text(run.to_toml())
    assert run_of(algorithm, {}, file) == run
    for kind in (Kind.REWARD, Kind.ADVANTAGE, Kind.GENERATOR, Kind.FILTER):
        assert f"\n{kind} = " not in run.to_toml()


GIVEN = "but --algo sft trains on given responses"
MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("sft", {"reward": "f1"}, f'--reward: found ["f1"], {GIVEN}, which no reward works on; leave it out.'),
    (
        "sft",
        {"generator": "single_turn"},
        f"--generator: found 'single_turn', {GIVEN}, which no generator works on; leave it out.",
    ),
    (
        "sft",
        {"advantage": "grpo"},
        f"--advantage: found 'grpo', {GIVEN}, which no advantage works on; leave it out.",
    ),
    (
        "dpo",
        {"filter": ["zero_std"]},
        '--filter: found ["zero_std"], but --algo dpo trains on given pairs, which no filter works on; '
        "leave it out.",
    ),
    (
        "sft",
        {"correction": ["tis"]},
        f'--correction: found ["tis"], {GIVEN}, which no correction works on; leave it out.',
    ),
    (
        "dpo",
        {"correction": ["tis"]},
        '--correction: found ["tis"], but --algo dpo trains on given pairs, which no correction works on; '
        "leave it out.",
    ),
    ("sft", {"group_size": "4"}, f"--group-size: found 4, {GIVEN}, 1 to a prompt; leave it out."),
    ("sft", {"top_p": "0.9"}, f"--top-p: found 0.9, {GIVEN} and samples none; leave it out."),
    ("sft", {"temperature": "0.5"}, f"--temperature: found 0.5, {GIVEN} and samples none; leave it out."),
    ("sft", {"kl_coef": "0.1"}, f"--kl-coef: found 0.1, {GIVEN} and samples none; leave it out."),
    (
        "sft",
        {"loss": "dpo"},
        f"--loss: found 'dpo', which trains on given pairs, {GIVEN}; choose another one.",
    ),
    (
        "grpo",
        {"loss": "dpo"},
        "--loss: found 'dpo', which trains on given pairs, but --algo grpo trains on rollouts; choose "
        "another one.",
    ),
    (
        "sft",
        {"loss": "ppo_clip"},
        f"--loss: found 'ppo_clip', which trains on rollouts, {GIVEN}; choose another one.",
    ),
    (
        "dpo",
        {"normalizer": "per_token"},
        "--normalizer: found per_token, but the loss of --algo dpo is a mean over pairs; "
        "expected per_rollout.",
    ),
    (
        "dpo",
        {"tokens_per_rank": "70"},
        "--tokens-per-rank: found 70, expected at least 80, which the longest pair takes (twice "
        "--max-prompt-tokens plus --max-response-tokens).",
    ),
    (
        "dpo",
        {"loss.form": "ipo", "loss.label_smoothing": "0.1"},
        "label_smoothing belongs to the form sigmoid",
    ),
]


@pytest.mark.parametrize(
    ("algorithm", "flags", "sentence"), MISFITS, ids=[f"{name} {flags}" for name, flags, _ in MISFITS]
)
def test_a_misfit(run_of: Make, algorithm: str, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(algorithm, flags)
    assert sentence in str(caught.value)
