"""Data, rewards, evaluations, and what is kept of a run.

Each public function is what `settings.toml` names by `by`, as those of `slime.rollouts` are.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rlcore_import.run import Settings
from rlcore_import.trackers import trackers
from rlcore_import.translation import Outcome, implied, impossible, literal, single, translated
from rlcore_import.verl.run import ROLLOUT, Run

FUNCTION = "reward.custom_reward_function"
UNBOUNDED_REFILLS = 100


def _named(paths: Sequence[str]) -> Mapping[str, str]:
    """A name for each file: its own, or that of its folder for `train.parquet`."""
    names: dict[str, str] = {}
    for path in map(PurePath, paths):
        plain = path.stem if path.stem not in ("train", "test", "val", "validation") else path.parent.name
        name = re.sub(r"\W", "_", plain.lower()).lstrip("_0123456789") or "set"
        names[name if name not in names else f"{name}_{len(names)}"] = str(path)
    return names


def data(run: Run, name: str) -> Outcome | Settings:
    files = run.flags[name]
    most = run.number("data.train_max_samples", -1)
    rows = f"[:{most}]" if most > 0 else ""
    if len(files) == 1:
        return {"data": files[0] + rows}
    mix = [f"{short}={path}{rows}" for short, path in _named(files).items()]
    remark = "drawn equally often; verl draws by the number of rows, here NAME=PATH:WEIGHT"
    return translated({"data": mix}, remark)


def rows(run: Run, name: str) -> Outcome | Settings:
    return implied("all rows") if run.number(name, -1) < 0 else data(run, "data.train_files")


def evaluations(run: Run, name: str) -> Outcome | Settings:
    if not run.has("data.val_files"):
        return implied("there is no evaluation")
    sets = _named(run.flags["data.val_files"])
    kwargs = f"{ROLLOUT}.val_kwargs"
    if name == "data.val_max_samples":
        most = run.number(name, -1)
        return {"eval_prompts": most} if most > 0 else implied("all of them")
    if name != "data.val_files":
        field, value = name.rpartition(".")[2], literal(run.text(name))
        if field == "do_sample" or (field == "temperature" and not run.is_on(f"{kwargs}.do_sample")):
            field, value = "temperature", _temperature(run)
        field, value = {"n": "samples"}.get(field, field), max(0, value) if field == "top_k" else value
        return {f"eval.{short}.{field}": value for short in sets}
    settings: dict[str, Any] = {"eval_prompts": 100_000}
    for short, path in sets.items():
        settings |= {f"eval.{short}.data": path, f"eval.{short}.temperature": _temperature(run)}
    return settings


def _temperature(run: Run) -> float:
    """Without `do_sample` verl takes the likeliest token."""
    kwargs = f"{ROLLOUT}.val_kwargs"
    return run.real(f"{kwargs}.temperature", 0) if run.is_on(f"{kwargs}.do_sample") else 0.0


def shuffle(run: Run, name: str) -> Settings:
    return {"shuffle": run.is_on(name, True)}


def template(run: Run, name: str) -> Settings:
    return {f"source.chat_template_kwargs.{name.rpartition('.')[2]}": single(run.flags[name])}


def reward(run: Run, name: str) -> Outcome | Settings:
    """A function of the user, a reward model, or what stands for verl's choice by `data_source`."""
    if run.is_on("reward.reward_model.enable"):
        model = run.text("reward.reward_model.model_path")
        size = run.number("reward.reward_model.rollout.tensor_model_parallel_size", 2)
        settings: dict[str, Any] = {"frozen": [f"rm={model}"], "reward": ["reward_model"]}
        settings["reward.reward_model.url"] = "frozen:rm"
        return settings | ({"frozen.rm.tp_size": size} if size > 1 else {})
    if run.has(f"{FUNCTION}.path"):
        return {"reward": [f"{run.text(f'{FUNCTION}.path')}:{run.text(f'{FUNCTION}.name', 'compute_score')}"]}
    return implied(f"without {FUNCTION}.path nothing is named")


def manager(run: Run, name: str) -> Outcome | Settings:
    kind = run.text("reward.reward_manager.name", "naive")
    if kind not in ("naive", "dapo"):
        return impossible(f"found {kind}, expected naive or dapo; write a --reward (docs/rewards.md)")
    return implied("--filter overlong is its penalty" if kind == "dapo" else "a reward of each sample")


def overlong(run: Run, name: str) -> Outcome | Settings:
    at = name.rpartition(".")[0]
    if not run.is_on(f"{at}.enable"):
        return implied("long responses lose nothing")
    if run.real(f"{at}.penalty_factor", 1) != 1:
        return impossible("the largest penalty is 1")
    most = run.number(f"{at.partition('.')[0]}.reward_kwargs.max_resp_len", run.response_tokens)
    part = "filter.overlong"
    return {
        "filter": ["overlong"],
        f"{part}.mode": "penalty",
        f"{part}.max_tokens": most,
        f"{part}.buffer": run.number(f"{at}.len", most),
    }


def groups(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on("algorithm.filter_groups.enable"):
        return implied("no group is dropped")
    most = run.number("algorithm.filter_groups.max_num_gen_batches", 0)
    return {"filter": ["zero_std"], "max_refills": most if most > 0 else UNBOUNDED_REFILLS}


def steps(run: Run, name: str) -> Outcome | Settings:
    if name == "trainer.total_epochs":
        wins = run.has("trainer.total_training_steps")
        return implied("total_training_steps wins") if wins else {"epochs": run.number(name, 30)}
    return {"steps": run.number(name, 1), "epochs": None}


def every(run: Run, name: str) -> Settings:
    return {"save_every" if "save" in name else "eval_every": max(0, run.number(name, -1))}


def tracker(run: Run, name: str) -> Outcome | Settings:
    return trackers((one for one in run.flags[name] if one not in ("console", "file")), "always on")


def wandb(run: Run, name: str) -> Outcome | Settings:
    if "wandb" not in run.flags.get("trainer.logger", ("wandb",)):
        return implied("the folder of the run has a name of its own")
    if not run.has("trainer.logger"):
        return implied("add --tracker wandb to write there")
    field = "project" if "project" in name else "run_name"
    return {f"tracker.wandb.{field}": run.text(name)}


def profile(run: Run, name: str) -> Outcome | Settings:
    found = [literal(text) for text in run.flags[name]]
    first, last = min(found), max(found)
    return {"profile_steps": f"{first}-{last}" if last > first else str(first)}
