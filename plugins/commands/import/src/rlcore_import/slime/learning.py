"""The algorithm, its optimizer, and what is told and kept of a run.

Each public function is what `flags.toml` names by `by`: of a run and the name of one of its flags, without
dashes, it gives the settings that stand for the flag, or says why there are none.
"""

from pathlib import Path
from typing import Any

from rlcore_import.run import Settings
from rlcore_import.slime.run import RECIPES, Run
from rlcore_import.translation import Outcome, implied, impossible


def algorithm(run: Run, name: str) -> Outcome | Settings:
    if run.trains_on_given:
        return {"algo": "sft"}
    if name == "loss-type":
        is_policy = run.text(name) == "policy_loss"
        return implied("the recipe's loss") if is_policy else impossible("write a --loss (docs/hooks.md)")
    if run.estimator not in RECIPES:
        return impossible(f"expected one of {', '.join(RECIPES)}")
    return {"algo": RECIPES[run.estimator]}


def clip(run: Run, _: str) -> Settings:
    return run.clip


def adam(run: Run, name: str) -> Settings:
    return {f"megatron.{name.replace('-', '_')}": run.real(name, 0)}


def kl(run: Run, name: str) -> Outcome | Settings:
    in_loss, in_reward = run.real("kl-loss-coef", 0), run.real("kl-coef", 0)
    coefficient = in_reward or (in_loss if run.has("use-kl-loss") else 0)
    if not coefficient:
        return implied("the coefficient is 0: no KL term, and no reference is loaded")
    settings = {"kl_coef": coefficient, "kl_place": "reward" if in_reward else "loss"}
    settings["kl_estimator"] = run.text("kl-loss-type", "k1")
    return settings | ({"kl_unbiased": True} if run.has("use-unbiased-kl") else {})


def correction(run: Run, name: str) -> Outcome | Settings:
    if name in ("use-opsm", "opsm-delta"):
        if not run.has("use-opsm"):
            return implied("without --use-opsm it does nothing")
        if run.minibatches == 1 and not run.has("use-rollout-logprobs"):
            return implied("with one optimizer step for each rollout, old and new log-probs are the same")
        return {"correction": ["opsm"], "correction.opsm.delta": run.real("opsm-delta", 1e-4)}
    if not run.has("use-tis"):
        return implied("without --use-tis it does nothing")
    own = run.text("custom-tis-function-path")
    if own and not own.endswith(".icepop_function"):
        return impossible("write a --correction (docs/corrections.md); mis has slime's example")
    part = "icepop" if own else "tis"
    low, high = run.real("tis-clip-low", 0), run.real("tis-clip", 2)
    return {"correction": [part], f"correction.{part}.low": low, f"correction.{part}.high": high}


def distillation(run: Run, name: str) -> Outcome | Settings:
    if not run.has("use-opd"):
        return implied("without --use-opd it does nothing")
    settings: dict[str, Any] = {"distill_coef": run.real("opd-kl-coef", 1)}
    if run.text("opd-type") == "megatron":
        return settings | {"teacher.model": run.text("opd-teacher-load")}
    urls = run.flags.get("opd-teacher-urls") or (run.text("rm-url"),)
    for assignment in urls:
        name, equals, url = assignment.partition("=")
        is_named = bool(equals) and name.isidentifier() and name != "default"
        at = f"teacher.{name}.url" if is_named else "teacher.url"
        settings[at] = (url if is_named else assignment.removeprefix("default=")).removesuffix("/generate")
    return settings


def optimizer(run: Run, name: str) -> Outcome | Settings:
    chosen = run.text(name)
    return implied("AdamW") if chosen == "adam" else {"megatron.optimizer": chosen}


def warmup(run: Run, name: str) -> Outcome | Settings:
    steps, each = run.number(name, 0), run.minibatches or 1
    if steps % each:
        return impossible(
            f"a warm-up is of whole rollouts, each of {each} optimizer steps here; give a multiple of {each}"
        )
    return {f"{'critic.' if name.startswith('critic') else ''}warmup_steps": steps // each}


def decay_end(run: Run, name: str) -> Outcome:
    asked, steps = run.number(name, 0), run.number("num-rollout", 0) * (run.minibatches or 1)
    if asked == steps:
        return implied("the schedule ends with the run")
    if run.text("lr-decay-style") == "constant":
        return implied("a constant learning rate has no end")
    return impossible(f"the schedule ends with the run, after {steps} optimizer steps")


def minibatches(run: Run, name: str) -> Outcome | Settings:
    if run.minibatches is None:
        batch = run.text("global-batch-size")
        return impossible(f"{batch} does not divide the {run.samples} samples of a rollout")
    return {"minibatches": run.minibatches}


def tokens(run: Run, name: str) -> Settings:
    if run.trains_on_given:
        return {"tokens_per_rank": run.max_tokens}
    # a sample that is longer goes alone in slime; in rlcore every sample fits into a micro-batch
    longest = run.prompt_tokens + run.number("rollout-max-response-len", 0)
    return {"tokens_per_rank": max(run.max_tokens, longest)}


def freeze(run: Run, name: str) -> Settings:
    patterns = list(run.flags[name])
    settings: dict[str, Any] = {"model_hook": ["freeze"], "model_hook.freeze.pattern": patterns}
    return settings | ({"model_hook.freeze.invert": True} if name.startswith("only") else {})


def load(run: Run, name: str) -> Outcome:
    path = run.text(name).rstrip("/")
    if path and path == run.text(name.replace("load", "save")).rstrip("/"):
        return implied("rlcore train --resume RUN goes on with a run")
    if path and path == run.text("hf-checkpoint").rstrip("/"):
        return implied("a run starts from --model")
    ours = "--critic.model" if name == "critic-load" else "--model"
    return impossible(
        f"rlcore does not read slime's checkpoints; export it to Hugging Face's format, for {ours}"
    )


def critic_load(run: Run, name: str) -> Outcome | Settings:
    path = run.text(name).rstrip("/")
    return {"critic.model": path} if Path(path, "config.json").is_file() else load(run, name)


def reference(run: Run, name: str) -> Outcome | Settings:
    path = run.text(name).rstrip("/")
    model = run.text("hf-checkpoint").rstrip("/")
    if not Path(path, "config.json").is_file() or path == model:
        return implied("the reference is the run's model; nothing is converted")
    return {"reference.model": path}


def wandb(run: Run, name: str) -> Outcome | Settings:
    if not run.has("use-wandb"):
        return implied("without --use-wandb it does nothing")
    own = name.removeprefix("wandb-")
    setting = {"team": "entity", "exp-name": "run_name"}.get(own, own)
    return {f"tracker.wandb.{setting}": run.text(name)}


def profiler(run: Run, name: str) -> Outcome | Settings:
    if not run.has("use-pytorch-profiler"):
        return implied("without --use-pytorch-profiler it does nothing")
    first, end = run.number("profile-step-start", 10), run.number("profile-step-end", 12)
    return {"profile_steps": f"{first}-{max(first, end - 1)}"}


def train_only(run: Run, name: str) -> Outcome:
    if run.trains_on_given:
        return implied("--algo sft generates nothing")
    return impossible("save rollouts with --save-rollouts-every 1, then train on them with --producer saved")
