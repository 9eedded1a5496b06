"""What a run needs beside its policy: joined from the parts and the KL term, and refused where it misfits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore import Algorithm, ConfigError, Input, Kind
from rlcore.compose.resolved import Resolved
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Switches, load
from rlcore.plugins.registry import check
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select

HERE = Path(__file__).parent
BASE = {"algo": "toy", "model": "tiny", "engine": "local"}
CRITIC = {"advantage": "judge", "value_loss": "square"}
NO_CRITIC = "there is no critic; no installed plugin offers any."
URL = {"teacher.url": "http://127.0.0.1:30000"}


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
    ({"distill_coef": "0.5", "teacher.model": "x"}, {Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS}),
]


@pytest.mark.parametrize(("flags", "inputs"), NEEDS, ids=[str(flags) for flags, _ in NEEDS])
def test_needs(make: Callable[..., Resolved], flags: dict[str, Any], inputs: set[Input]) -> None:
    assert make(flags).needs == inputs


@cases("roles")
def test_a_misfit(make: Callable[..., Resolved], case: Case) -> None:
    with case.refused(ConfigError):
        make(case.given)


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
    run = make({"kl_coef": "0.1", "reference.model": "some/model"}).run
    assert run.reference.model == str(Path("some/model").resolve())
    run = make({"loss": "taught", "teacher.model": "runs/t/checkpoints/9"}).run
    assert run.teacher.model == str(Path("runs/t/checkpoints/9").resolve())
