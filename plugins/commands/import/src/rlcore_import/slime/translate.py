"""From the flags of a run of slime to a translation."""

from typing import Any

from rlcore import Registry
from rlcore_import.arguments import Arguments
from rlcore_import.slime import learning, placement, rollouts
from rlcore_import.slime.run import RECIPES, Run
from rlcore_import.table import Table
from rlcore_import.translation import FlagVerdict, Outcome, Row, Translation, functions_of, impossible

ALONE = "slime's default; a group of one has no advantage, so nothing is learned: give the flag"
COMPUTED = functions_of(placement, rollouts, learning)


def table() -> Table:
    """What rlcore knows of slime's flags."""
    return Table.of("slime")


def environment() -> Table:
    """What rlcore knows of the variables of the environment that a run of slime reads."""
    return Table.of("slime", "environment.toml")


def translate(arguments: Arguments, registry: Registry) -> Translation[Run]:
    """Every flag in its turn, over what slime does where no flag says otherwise. ConfigError."""
    run = Run.of(arguments, registry)
    translation = Translation(table(), COMPUTED, run, settings=_defaults(run))
    for flag, values in arguments.flags.items():
        translation.add(flag, values)
    for name, value in arguments.environment.items():
        if (rule := environment().find(name)) is not None:
            verdict = FlagVerdict(rule.summary[0])
            translation.rows.append(Row(name, (value,), Outcome(verdict, rule.summary[1])))
    if run.has("opd-teacher-urls") and not run.has("opd-teacher-key"):
        translation.add("--opd-teacher-key", ("opd_teacher",))  # miles' default, which rlcore does not read
    if run.compares_siblings and not run.has("n-samples-per-prompt"):
        translation.rows.append(Row("--n-samples-per-prompt", ("1",), impossible(ALONE)))
    return translation


def _defaults(run: Run) -> dict[str, Any]:
    """What slime does without a flag, and rlcore does not."""
    algo = RECIPES.get(run.estimator, "grpo")
    settings: dict[str, Any] = {"algo": algo, "engine": "sglang", "dtype": "bf16", "seed": 1234}
    settings |= {"lr_schedule": "linear", "weight_decay": 0.01, "ranks": run.ranks}
    settings |= {"max_prompt_tokens": run.prompt_tokens, "shuffle": False}
    tensor = run.number("tensor-model-parallel-size", 1)
    if tensor > 1 and run.has("num-experts") and not run.has("expert-tensor-parallel-size"):
        # megatron's default is the tensor-parallel size
        settings["megatron.expert_tensor_parallel_size"] = tensor
    if run.trains_on_given:
        half = run.max_tokens // 2
        return settings | {"max_prompt_tokens": half, "max_response_tokens": half}
    settings |= {"placement": "split", "group_size": 1, "eval_every": 0}
    if run.has("dynamic-sampling-filter-path"):
        settings["max_refills"] = 100  # slime draws anew until the step is full
    if not run.has("colocate"):
        settings["engine.publish"] = "broadcast"  # as slime does, by NCCL
    elif not run.has("debug-rollout-only"):
        settings |= {"sleep": "all", "engine.publish": "tensor"}  # by handles, as slime does
    settings |= {**run.clip, **run.engines, "normalizer": "per_rollout"}
    if run.estimator == "ppo":  # as slime's critic learns; the recipe has values of its own
        settings |= {"whiten_advantages": False, "advantage.lam": 1.0, "critic.lr": run.real("lr", 1e-6)}
    if run.staleness:
        settings["max_staleness"] = run.staleness
    return settings
