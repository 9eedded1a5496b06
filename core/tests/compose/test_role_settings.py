"""What a run needs beside its policy: joined from the parts and the KL term, and refused where it misfits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.api.inputs import Input
from rlcore.api.records import Algorithm, Kind
from rlcore.compose.resolve import resolve
from rlcore.compose.resolved import Resolved
from rlcore.compose.select import select
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Switches, load
from rlcore.plugins.registry import check

HERE = Path(__file__).parent
BASE = {"algo": "toy", "model": "tiny", "engine": "local"}
CRITIC = {"advantage": "judge", "value_loss": "square"}
NO_CRITIC = "there is no critic; no installed plugin offers any."
URL = {"teacher_url": "http://127.0.0.1:30000"}


@pytest.fixture(scope="module")
def make() -> Callable[..., Resolved]:
    """`make(flags)`: the resolved run, with the parts of both plugin files to choose from."""
    files = (HERE / "toy_plugin.py", HERE / "roles_plugin.py")
    plugins = load(Switches(only=("local", "sampling", "sglang", "tasks"), files=files, strict=True))

    def make(flags: dict[str, Any]) -> Resolved:
        chosen = select(plugins.registry, None, Layer(label="", values={**BASE, **flags}))
        return resolve(chosen, plugins.files)

    return make


NEEDS: list[tuple[dict[str, Any], set[Input]]] = [
    ({}, set()),
    (CRITIC, {Input.VALUES}),
    ({"loss": "near"}, {Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS}),
    ({"kl_coef": "0.1"}, {Input.REFERENCE_LOG_PROBS}),
    ({"kl_coef": "0.1", "kl_place": "reward"}, {Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS}),
    ({**CRITIC, "kl_coef": "0.1"}, {Input.REFERENCE_LOG_PROBS, Input.VALUES}),
    ({"loss": "taught", **URL}, {Input.TEACHER_LOG_PROBS}),
    ({"distill_coef": "0.5", "teacher_model": "x"}, {Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS}),
]


@pytest.mark.parametrize(("flags", "inputs"), NEEDS, ids=[str(flags) for flags, _ in NEEDS])
def test_needs(make: Callable[..., Resolved], flags: dict[str, Any], inputs: set[Input]) -> None:
    assert make(flags).needs == inputs


MISFITS: list[tuple[dict[str, Any], str]] = [
    (
        {"advantage": "judge"},
        "--value-loss: found none, but advantage 'judge' reads a critic's values; add --value-loss square.",
    ),
    (
        {"value_loss": "square"},
        "--value-loss: found 'square', but nothing reads a critic's values; add --advantage judge or "
        "--value-loss none.",
    ),
    ({"critic_model": "x"}, f"--critic-model: found {{cwd}}/x, but {NO_CRITIC}"),
    ({"critic_warmup_steps": "2"}, f"--critic-warmup-steps: found 2, but {NO_CRITIC}"),
    ({"critic_ranks": "1"}, f"--critic-ranks: found 1, but {NO_CRITIC}"),
    ({"critic_lr_schedule": "linear"}, f"--critic-lr-schedule: found linear, but {NO_CRITIC}"),
    ({"critic_clip_grad": "0"}, f"--critic-clip-grad: found 0, but {NO_CRITIC}"),
    (
        {**CRITIC, "critic_ranks": "3", "ranks": "2"},
        "--critic-ranks: found 3, which hold 3 critics, expected a number that divides the 2 policies of "
        "--ranks, or is divided by it.",
    ),
    (
        {**CRITIC, "critic_min_lr": "0.01", "critic_lr": "0.001"},
        "--critic-min-lr: found 0.01, expected at most --critic-lr (0.001).",
    ),
    (
        {**CRITIC, "critic_lr_warmup_steps": "100"},
        "--critic-lr-warmup-steps: found 100, expected less than --steps (100).",
    ),
    (
        {"reference_model": "/x"},
        "--reference-model: found /x, but nothing reads the reference; add --kl-coef.",
    ),
    ({"reference_ranks": "1"}, "--reference-ranks: found 1, but nothing reads the reference; add --kl-coef."),
    (
        {"kl_coef": "0.1", "reference_ranks": "3", "ranks": "2"},
        "--reference-ranks: found 3, which hold 3 references, expected a number that divides the 2 policies "
        "of --ranks, or is divided by it.",
    ),
    (
        {"kl_coef": "0.1", "reference_ranks": "1", "reference_placement": "swapped"},
        "--reference-placement: found swapped, which borrows the policy's model, but --reference-ranks gives "
        "the reference workers of its own; leave one of them out.",
    ),
    (
        {"loss": "taught", **URL, "teacher_ranks": "1"},
        "--teacher-ranks: found 1, but no train worker has a teacher; add --teacher-model.",
    ),
    (
        {"reference_refresh_every": "3"},
        "--reference-refresh-every: found 3, but nothing reads the reference; add --kl-coef.",
    ),
    ({"kl_unbiased": True}, "--kl-unbiased: found true, but nothing reads the reference; add --kl-coef."),
    (
        {"kl_coef": "0.1", "kl_place": "reward", "kl_unbiased": True},
        "--kl-unbiased: found true with --kl-place reward, expected --kl-place loss.",
    ),
    (
        {**CRITIC, "critic_warmup_steps": "100"},
        "--critic-warmup-steps: found 100, expected less than --steps (100).",
    ),
    (
        {**CRITIC, "critic_warmup_steps": "90", "warmup_steps": "10"},
        "--warmup-steps: found 10, expected less than 10, the --steps that are left after "
        "--critic-warmup-steps.",
    ),
    (
        {**CRITIC, "min_lr": "0.01", "critic_lr": "0.001"},
        "--min-lr: found 0.01, expected at most --critic-lr (0.001).",
    ),
    (
        {"loss": "taught"},
        "--teacher-model: found none, but loss 'taught' compares with a teacher; add --teacher-model PATH or "
        "--teacher-url URL.",
    ),
    (
        {"distill_coef": "0.1"},
        "--teacher-model: found none, but --distill-coef compares with a teacher; add --teacher-model PATH "
        "or --teacher-url URL.",
    ),
    (
        {"teacher_model": "/x"},
        "--teacher-model: found '/x', but nothing reads the teacher; add --distill-coef.",
    ),
    (
        {"loss": "taught", "teacher_model": "/x", **URL},
        "--teacher-model: found '/x', and --teacher-url: found 'http://127.0.0.1:30000'; expected "
        "one teacher.",
    ),
    (
        {"loss": "taught", "teacher_url": ["math=http://a:1", "math=http://b:1"]},
        "--teacher-url: found the name 'math' twice; expected NAME=URL, each name once.",
    ),
    (
        {"loss": "taught", "teacher_url": ["http://a:1/?a=b", "frozen:t"]},
        "--teacher-url: found a URL without a name twice; expected NAME=URL, each name once.",
    ),
    (
        {"loss": "taught", "teacher_url": "127.0.0.1:30000"},
        "--teacher-url: found '127.0.0.1:30000', expected a URL such as http://127.0.0.1:30000.",
    ),
    (
        {"loss": "taught", **URL, "temperature": "0.5"},
        "--temperature: found 0.5, but the engine of --teacher-url scores at temperature 1; expected 1, or "
        "--teacher-model.",
    ),
    (
        {"loss": "taught", "loss.top": "4", **URL},
        "--teacher-url: found 'http://127.0.0.1:30000', but the loss compares 4 tokens of each position, and "
        "an engine scores the sampled token alone; use --teacher-model.",
    ),
    (
        {"reference_placement": "swapped"},
        "--reference-placement: found swapped, but nothing reads the reference; add --kl-coef.",
    ),
    ({"kl_place": "both"}, '--kl-place: found \'both\', expected one of "loss", "reward".'),
]


@pytest.mark.parametrize(("flags", "sentence"), MISFITS, ids=[str(flags) for flags, _ in MISFITS])
def test_a_misfit(make: Callable[..., Resolved], flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(flags)
    assert str(caught.value) == sentence.replace("{cwd}", os.getcwd())


def test_a_recipe_scales_what_the_preset_suggests(make: Callable[..., Resolved]) -> None:
    """0.2 is the preset's, 0.5 the other recipe's. What the user says is left alone."""
    scaled = {"algo": "scaled", "group_size": "3"}
    assert make(scaled).run.optimizer.lr == 0.05
    assert make({**scaled, "lr": "0.2"}).run.optimizer.lr == 0.2
    assert make({}).run.optimizer.lr == 0.5


def test_a_scale_of_no_number_is_refused() -> None:
    wrong = Algorithm(name="a", summary="", paper="", parts={}, scales={"entropy": 2.0})
    assert check(Kind.ALGORITHM, wrong) == (
        "algorithm 'a': scales: 'entropy' is no setting of a run that is a number"
    )


def test_a_directory_is_found_again_from_anywhere(make: Callable[..., Resolved]) -> None:
    run = make({"kl_coef": "0.1", "reference_model": "some/model"}).run
    assert run.kl.reference_model == str(Path("some/model").resolve())
    run = make({"loss": "taught", "teacher_model": "runs/t/checkpoints/9"}).run
    assert run.teacher.teacher_model == str(Path("runs/t/checkpoints/9").resolve())
