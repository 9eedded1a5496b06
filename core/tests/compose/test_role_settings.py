"""What a run needs beside its policy: joined from the parts and the KL term, and refused where it misfits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore import Algorithm, ConfigError, Input, Kind
from rlcore.compose.resolved import Resolved
from rlcore.plugins.registry import check

CRITIC = {"advantage": "judge", "value_loss": "square"}
URL = {"teacher.url": "http://127.0.0.1:30000"}


NEEDS: list[tuple[dict[str, Any], set[Input]]] = [
    ({}, set()),
    (CRITIC, {Input.VALUES}),
    ({"loss": "near"}, {Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS}),
    ({"kl_coef": "0.1"}, {Input.REFERENCE_LOG_PROBS}),
    ({"kl_coef": "0.1", "kl_place": "reward"}, {Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS}),
    ({**CRITIC, "kl_coef": "0.1"}, {Input.REFERENCE_LOG_PROBS, Input.VALUES}),
    ({"loss": "taught", **URL}, {Input.TEACHER_LOG_PROBS}),
    ({"distill_coef": "0.5", "teacher.model": "x"}, {Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS}),
]


@pytest.mark.parametrize(("flags", "inputs"), NEEDS, ids=[str(flags) for flags, _ in NEEDS])
def test_needs(make_with_roles: Callable[..., Resolved], flags: dict[str, Any], inputs: set[Input]) -> None:
    assert make_with_roles(flags).needs == inputs


@cases("roles")
def test_a_misfit(make_with_roles: Callable[..., Resolved], case: Case) -> None:
    with case.refused(ConfigError):
        make_with_roles(case.given)


def test_a_recipe_scales_what_the_preset_suggests(make_with_roles: Callable[..., Resolved]) -> None:
    """0.2 is the preset's, 0.5 the other recipe's. What the user says is left alone."""
    scaled = {"algo": "scaled", "group_size": "3"}
    assert make_with_roles(scaled).run.optimizer.lr == 0.05
    assert make_with_roles({**scaled, "lr": "0.2"}).run.optimizer.lr == 0.2
    assert make_with_roles({}).run.optimizer.lr == 0.5


def test_a_scale_of_no_number_is_refused() -> None:
    wrong = Algorithm(name="a", summary="", paper="", parts={}, scales={"entropy": 2.0})
    assert check(Kind.ALGORITHM, wrong) == (
        "algorithm 'a': scales: 'entropy' is no setting of a run that is a number"
    )


def test_a_directory_is_found_again_from_anywhere(make_with_roles: Callable[..., Resolved]) -> None:
    run = make_with_roles({"kl_coef": "0.1", "reference.model": "some/model"}).run
    assert run.reference.model == str(Path("some/model").resolve())
    run = make_with_roles({"loss": "taught", "teacher.model": "runs/t/checkpoints/9"}).run
    assert run.teacher.model == str(Path("runs/t/checkpoints/9").resolve())
