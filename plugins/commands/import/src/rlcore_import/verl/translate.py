"""From the settings of a run of verl to a translation."""

import re
from typing import Any

from rlcore import ConfigError, Registry
from rlcore_import.arguments import Arguments
from rlcore_import.run import UNSET
from rlcore_import.table import Table
from rlcore_import.translation import Outcome, Row, Translation, functions_of, impossible, translated
from rlcore_import.verl import data, learning, placement
from rlcore_import.verl.run import ACTOR, COMPARE, LEGACY, MEGATRON, RECIPES, ROLLOUT, Run

PATH = "reward.custom_reward_function.path"
COMPUTED = functions_of(placement, data, learning)


def table() -> Table:
    """What rlcore knows of verl's settings."""
    return Table.of("verl", "settings.toml")


def translate(arguments: Arguments, registry: Registry) -> Translation[Run]:
    """Every setting in its turn, over what verl does where none says otherwise. ConfigError."""
    if arguments.entry and not re.search(r"main_(ppo|dapo)\w*(\.py)?$", arguments.entry):
        raise ConfigError(
            f"{arguments.entry}: expected main_ppo or main_dapo; fine-tuning is `rlcore train --algo sft`."
        )
    run = Run.of(arguments, registry)
    translation = Translation(table(), COMPUTED, run, settings=_defaults(run))
    for flag, values in arguments.flags.items():
        translation.add(flag, values)
    is_chosen = any(arguments.flags.get(name, UNSET) != UNSET for name in (PATH, LEGACY[PATH]))
    if not is_chosen and (outcome := _default_reward(run)) is not None:
        translation.append(Row(PATH, ("null",), outcome))
    if not run.has(f"{ROLLOUT}.n") and run.estimator in COMPARE:
        why = "verl's default; a group of one has nothing to compare with"
        translation.append(Row(f"{ROLLOUT}.n", ("1",), impossible(why)))
    return translation


def _default_reward(run: Run) -> Outcome | None:
    """What scores where the run names nothing: verl then chooses by the column `data_source`."""
    if run.is_on("reward.reward_model.enable"):
        return None
    files = " ".join(run.flags.get("data.train_files", ())).lower()
    chosen = "dapo" if "dapo" in files else "math"
    remark = "verl chooses a function by data_source; name one by --reward FILE.py:FUNCTION"
    return translated({"reward": [chosen]}, remark)


def _defaults(run: Run) -> dict[str, Any]:
    """What verl does without a setting, and rlcore does not."""
    settings: dict[str, Any] = {"algo": RECIPES.get(run.estimator, "grpo"), "trainer": run.trainer}
    settings |= {"ranks": run.ranks, "engine": "sglang", "dtype": "bf16"}
    settings |= {"prompts_per_step": run.prompts, "group_size": run.group, "epochs": 30, "eval_every": 0}
    settings |= {"max_prompt_tokens": run.prompt_tokens, "max_response_tokens": run.response_tokens}
    settings |= {"normalizer": "per_token", "entropy_coef": 0.0, "weight_decay": 0.01, "clip_grad": 1.0}
    settings |= {"source.label_key": "reward_model.ground_truth", "source.metadata_key": "extra_info"}
    settings["sglang.mem_fraction_static"] = run.real(f"{ROLLOUT}.gpu_memory_utilization", 0.5)
    kl = f"{ACTOR}.kl_loss_coef" if run.kl_place == "loss" else "algorithm.kl_ctrl.kl_coef"
    for part in (
        placement.engines(run, ""),
        learning.algorithm(run, ""),
        learning.loss(run, ""),
        learning.minibatches(run, ""),
        learning.tokens(run, ""),
        learning.kl(run, kl),
    ):
        if not isinstance(part, Outcome):
            settings |= {name: value for name, value in part.items() if value is not None}
    if not run.is_split:
        settings |= {"sleep": "none", "engine.publish": "tensor"}
    if run.trainer == "fsdp":
        settings["trainer.recompute"] = True
    if run.is_megatron and run.number(f"{MEGATRON}.tensor_model_parallel_size", 1) > 1:
        settings["megatron.sequence_parallel"] = True
    if run.estimator == "gae":
        settings |= {"advantage.lam": 1.0, "value_loss.clip": 0.5, "critic.lr": 1e-5}
    return settings
