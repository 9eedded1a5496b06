"""From flags to what the train workers are given: each flag arrives in its place, and in no other way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore.api.columns import ROUTED_EXPERTS, Input, TopTokens
from rlcore.api.errors import ConfigError
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.roles import POLICY, ModelKind, RoleSpec
from rlcore.api.types import Prompt
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.roles import policy_spec
from rlcore.data.cursors import PromptCursor
from rlcore.preparation.prepare import prepare, prepare_served
from rlcore.preparation.prepared import Prepared
from rlcore.workers.setup import cpu_threads, worker_setups
from rlcore.workers.train_worker import WorkerSetup
from rlcore_tasks.tasks import Copy
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

Setups = Callable[..., list[WorkerSetup]]
PUBLISHER = SharedMemoryPublisher(root=Path("/nowhere"), dtype="fp32")


def specs(resolved: Resolved, model: ModelSpec) -> dict[str, RoleSpec]:
    beside = {role: table.spec(model, resolved.run) for role, table in resolved.roles.items()}
    return {POLICY: policy_spec(model, resolved.run), **beside}


@pytest.fixture(scope="module")
def setups(prepared: Prepared) -> Setups:
    """`setups(flags, algorithm, **changes)`: those of a run, with fields of `Prepared` changed."""

    def setups(
        flags: dict[str, Any] | None = None, algorithm: str = "grpo", **changes: Any
    ) -> list[WorkerSetup]:
        resolved = run_of(algorithm, flags)
        roles = specs(resolved, changes.get("model", prepared.model))
        return worker_setups(replace(prepared, resolved=resolved, roles=roles, **changes), PUBLISHER, 3)

    return setups


KL = {"kl_coef": "0.5"}
TEACHER = {"teacher.model": "/teacher"}
LEARNER: list[tuple[dict[str, Any], str, str, Any]] = [
    ({}, "sft", "sampled", False),
    ({}, "ppo", "return_needs", frozenset({Input.VALUES})),
    ({}, "dpo", "needs", frozenset({Input.REFERENCE_LOG_PROBS})),
    (
        {**TEACHER, "loss.top_k": "4", "loss.top_of": "student"},
        "opd",
        "top_tokens",
        TopTokens(count=4, of="student"),
    ),
    ({"old_log_probs": "rollout"}, "grpo", "rollout_as_old", True),
    (KL, "grpo", "copies", frozenset({"reference"})),
]
"""Flags, the recipe, what `LearnerSettings` is asked and what it then says."""


@pytest.mark.parametrize(("flags", "algorithm", "name", "expected"), LEARNER, ids=str)
def test_a_setting_of_the_learner(
    setups: Setups, flags: dict[str, Any], algorithm: str, name: str, expected: Any
) -> None:
    """And without the flags it is something else."""
    plain, (found,) = setups()[0].learner, setups(flags, algorithm)
    assert getattr(found.learner, name) == expected
    assert getattr(plain, name) != expected
    assert found.learner.run == run_of(algorithm, flags).run


def test_what_the_prepared_run_decides(setups: Setups, prepared: Prepared, tmp_path: Path) -> None:
    plain = setups()[0].learner
    assert (plain.dtype, plain.folder) == (prepared.model.dtype, str(prepared.run_dir))
    half = replace(prepared.model, dtype="bf16" if plain.dtype == "fp32" else "fp32")
    changed = setups(model=half, run_dir=tmp_path)[0].learner
    assert (changed.dtype, changed.folder) == (half.dtype, str(tmp_path))
    assert not setups(KL, resume_from=tmp_path)[0].learner.copies
    assert not setups({**KL, "reference.model": "/reference"})[0].learner.copies


def test_a_model_in_fp8_blocks_is_served_so(setups: Setups, prepared: Prepared) -> None:
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    small = {**prepared.hf_config, "quantization_config": how}
    assert setups(hf_config=small)[0].learner.serves_fp8
    assert not setups()[0].learner.serves_fp8


def test_the_parts(setups: Setups) -> None:
    flags = {"correction": ["opsm", "mis"], "loss.clip_low": "0.1", "correction.mis.high": "9"}
    (found,) = setups({**flags, "minibatches": "2"})
    assert (found.loss.name, found.advantage and found.advantage.name) == ("ppo_clip", "grpo")
    assert found.loss.config.model_dump()["clip_low"] == 0.1
    assert [part.name for part in found.corrections] == ["opsm", "mis"]
    assert found.corrections[1].config.model_dump()["high"] == 9.0
    (given,) = setups(algorithm="sft")
    assert (given.loss.name, given.advantage, given.corrections) == ("sft", None, ())


def test_the_roles(setups: Setups, prepared: Prepared) -> None:
    """A model that nothing reads is built nowhere."""
    (plain,), (near,), (taught,), (ppo,) = setups(), setups(KL), setups(TEACHER, "opd"), setups({}, "ppo")
    assert (list(plain.roles), plain.value_loss) == ([POLICY], None)
    assert (plain.roles[POLICY].kind, plain.roles[POLICY].model) == (ModelKind.POLICY, prepared.model)
    assert near.roles["reference"] == RoleSpec(kind=ModelKind.SCORER, model=prepared.model)
    assert taught.roles["teacher"] == RoleSpec(kind=ModelKind.SCORER, model=prepared.model, source="/teacher")
    assert ppo.value_loss is not None
    assert (ppo.roles["critic"].kind, ppo.value_loss.name) == (ModelKind.VALUES, "clipped")
    assert ppo.roles["critic"].optimizer is not None


def test_an_evaluation_alone_loads_no_bridge(tmp_path: Path) -> None:
    resolved = run_of("grpo")
    bridge = Part(name="gone", factory="no_such_package:Bridge")
    chosen = Inference(
        run=resolved.run,
        model=replace(resolved.model, bridge=bridge),
        generator=resolved.generator,
        engine=resolved.engine,
        cluster=resolved.cluster,
    )
    assert prepare_served(chosen, tmp_path).model.bridge == bridge


def test_what_becomes_of_the_settings_of_roles(setups: Setups) -> None:
    experts = {"model": "deepseek", "replay_routing": True}
    plain, (told,) = setups()[0], setups({**KL, "reference.placement": "swapped", **experts})
    for setup, expected in ((plain, False), (told, True)):
        assert any(role.is_swapped for role in setup.roles.values()) == expected
        assert setup.roles[POLICY].replayed == ({ROUTED_EXPERTS} if expected else set())


@pytest.mark.parametrize(
    ("flags", "algorithm", "roles"),
    [
        ({}, "grpo", (POLICY,)),
        (KL, "grpo", (POLICY,)),
        ({**KL, "reference.refresh_every": "2"}, "grpo", (POLICY, "reference")),
        ({}, "ppo", (POLICY, "critic")),
        ({**KL, "reference.refresh_every": "2"}, "ppo", (POLICY, "critic", "reference")),
        (TEACHER, "opd", (POLICY,)),
    ],
    ids=str,
)
def test_the_roles_of_a_checkpoint(
    prepared: Prepared, flags: dict[str, Any], algorithm: str, roles: tuple[str, ...]
) -> None:
    resolved = run_of(algorithm, flags)
    run = replace(prepared, resolved=resolved, roles=specs(resolved, prepared.model))
    assert run.saved_roles == roles


OPTIMIZER = {
    "lr": "0.25",
    "lr_schedule": "cosine",
    "warmup_steps": "5",
    "min_lr": "0.125",
    "weight_decay": "0.75",
    "clip_grad": "2.5",
    "steps": "40",
    "minibatches": "3",
}


def test_the_optimizers(setups: Setups) -> None:
    """Steps are those of the optimizer, of which a rollout batch takes several; the critic begins earlier."""
    policy = OptimizerSettings(
        lr=0.25,
        lr_schedule="cosine",
        warmup_steps=15,
        total_steps=120,
        min_lr=0.125,
        weight_decay=0.75,
        clip_grad=2.5,
    )
    assert setups(OPTIMIZER)[0].roles[POLICY].optimizer == policy
    (found,) = setups({**OPTIMIZER, "critic.only_steps": "10", "critic.lr": "0.5"}, "ppo")
    assert found.roles[POLICY].optimizer == replace(policy, total_steps=90)
    assert found.roles["critic"].optimizer == replace(policy, lr=0.5)


def test_one_for_each_rank(setups: Setups, prepared: Prepared) -> None:
    found = setups({"ranks": "3", "seed": "11"})
    assert [setup.rank for setup in found] == [0, 1, 2]
    for setup in found:
        assert (setup.world_size, setup.run.seed, setup.threads) == (3, 11, 3)
        assert (setup.roles[POLICY].model, setup.publisher) == (prepared.model, PUBLISHER)
        assert (setup.sends, setup.tells) == (setup.rank == 0, setup.rank == 0)
        assert replace(setup, rank=0, sends=True, tells=True) == found[0]


def test_threads() -> None:
    assert cpu_threads(run_of("grpo", {"threads": "5"}).run) == 5
    few, many = (cpu_threads(run_of("grpo", {"ranks": ranks}).run) for ranks in ("1", "100000"))
    assert few >= many == 1


def test_a_share_of_the_steps_warms_up(setups: Setups) -> None:
    optimizer = setups({**OPTIMIZER, "warmup_steps": "0.1"})[0].roles[POLICY].optimizer
    assert optimizer is not None
    assert optimizer.warmup_steps == 12


def test_epochs_say_how_many_steps_there_are(tmp_path: Path) -> None:
    """80 of 100 prompts are trained on: twice 80, 30 a step."""
    flags = {"epochs": "2", "prompts_per_step": "30", "source.size": "100"}
    run = prepare(run_of("grpo", flags), tmp_path, None).resolved.run
    assert (run.steps, run.epochs) == (6, 2)
    with pytest.raises(ConfigError, match=r"--warmup-steps: found 6, expected less than --steps \(6\)"):
        prepare(run_of("grpo", {**flags, "warmup_steps": "6"}), tmp_path, None)


def test_epochs_of_a_source_that_draws_by_itself(tmp_path: Path) -> None:
    resolved = run_of("grpo", {"epochs": "2"})
    source = replace(resolved.source, factory=f"{__name__}:Drawing")
    with pytest.raises(ConfigError, match="--epochs: the source 'copy' says itself what is drawn next"):
        prepare(replace(resolved, source=source), tmp_path, None)


class Drawing(Copy):
    """A source with a cursor of its own."""

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> PromptCursor:
        return PromptCursor(prompts, seed)
