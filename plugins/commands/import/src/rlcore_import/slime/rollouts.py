"""Data, rewards and evaluations.

Each public function is what `flags.toml` names by `by`: of a run and the name of one of its flags, without
dashes, it gives the settings that stand for the flag, or says why there are none.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore import ConfigError
from rlcore_import.run import Settings
from rlcore_import.slime.run import Run
from rlcore_import.translation import Outcome, implied, impossible, literal, single

REWARDS: Mapping[str, Settings] = {
    **{name: {"reward": [name]} for name in ("math", "deepscaler", "dapo", "f1", "random")},
    "gpqa": {"reward": ["multiple_choice"]},
}
"""`--rm-type` → what scores here."""
OTHER_REWARDS = ("boxed_math", "remote_rm")
"""Those that need more than a name."""


def data(run: Run, name: str) -> Settings:
    return {"data": _sliced(run.text(name))}


def _sliced(text: str) -> str:
    """A file and its rows, as rlcore writes them."""
    path, at, rows = text.partition("@[")
    return f"{path}[{rows}" if at else path


def input_key(run: Run, name: str) -> Settings:
    return {"source.messages_key" if run.trains_on_given else "source.prompt_key": run.text(name)}


def template_kwargs(run: Run, name: str) -> Settings:
    try:
        kwargs = json.loads(run.text(name))
    except ValueError as error:
        raise ConfigError(f"--{name}: found broken JSON ({error}).") from error
    return {"source.chat_template_kwargs": kwargs}


def steps(run: Run, name: str) -> Outcome | Settings:
    steps = run.number(name, 0)
    return {"steps": steps} if steps else impossible("a run that only evaluates is `rlcore eval`")


def epochs(run: Run, name: str) -> Outcome | Settings:
    return implied("--num-rollout wins") if run.has("num-rollout") else {"epochs": run.number(name, 1)}


def stop(run: Run, name: str) -> Settings:
    return {"stop": list(run.flags[name])}  # as texts: `42` is no number here


def top_k(run: Run, name: str) -> Settings:
    return {"top_k": max(0, run.number(name, 0))}


def over_sampling(run: Run, name: str) -> Outcome | Settings:
    if not run.has("partial-rollout"):
        return implied("what a filter drops is drawn anew, and no finished group is thrown away")
    return {"over_sample": run.number(name, 1) / run.number("rollout-batch-size", 1)}


def partial(run: Run, _: str) -> Settings:
    masked = run.has("mask-offpolicy-in-partial-rollout")
    return {"partial_rollouts": True, **({"mask_stale_tokens": True} if masked else {"max_staleness": 1})}


DISTILLATION = "slime.rollout.on_policy_distillation"


def reward(run: Run, name: str) -> Outcome | Settings:
    kind = run.text("rm-type")
    if run.has("custom-rm-path") and not run.text("custom-rm-path").startswith(DISTILLATION):
        return implied("--custom-rm-path wins")
    if kind == "remote_rm" or (name == "rm-url" and not run.has("rm-type")):
        return {"reward": ["remote"], "reward.remote.url": run.text("rm-url")}
    if kind == "boxed_math":
        return {**REWARDS["math"], "reward.math.boxed": True}
    if kind.removeprefix("boxed_") in REWARDS and kind not in REWARDS:
        return impossible(
            "only --reward math takes the answer from a box; write a --reward (docs/rewards.md)"
        )
    if kind not in REWARDS:
        return impossible(
            f"expected one of {', '.join((*REWARDS, *OTHER_REWARDS))}; write a --reward (docs/rewards.md)"
        )
    return REWARDS[kind]


def custom_reward(run: Run, name: str) -> Outcome | Settings:
    module, _, function = run.text(name).rpartition(".")
    if module == DISTILLATION:
        return implied("the teacher is asked by --teacher.url")
    file = Path(f"{module.replace('.', '/')}.py")
    if not file.is_file():
        return impossible(f"there is no {file} here; give it as --reward {file}:{function}")
    return {"plugin": [str(file.resolve())], "reward": [function]}


EVALS = {
    "n-samples-per-eval-prompt": ("samples", "1"),
    "eval-temperature": ("temperature", "rollout-temperature"),
    "eval-top-p": ("top_p", "rollout-top-p"),
    "eval-top-k": ("top_k", "rollout-top-k"),
    "eval-max-response-len": ("max_tokens", "rollout-max-response-len"),
    "eval-input-key": ("source.prompt_key", "input-key"),
    "eval-label-key": ("source.label_key", "label-key"),
    "eval-tool-key": ("source.tools_key", "tool-key"),
}
"""Flag → the setting of each evaluation, and the flag that it falls back to."""


def evaluations(run: Run, name: str) -> Outcome | Settings:
    if not run.has("eval-prompt-data"):
        return implied("there is no evaluation")
    words = run.flags["eval-prompt-data"]
    if len(words) == 1:
        words = ("aime", *words)  # slime's own name for a set without one
    if len(words) % 2:
        return impossible("expected NAME PATH of each set")
    pairs = zip(words[::2], words[1::2], strict=True)
    sets = {re.sub(r"\W", "_", key.lower()): _sliced(path) for key, path in pairs}
    if name == "eval-prompt-data":
        parts = [_evaluation(run, dataset, path) for dataset, path in sets.items()]
        return {key: value for part in parts for key, value in part.items()}
    setting, _ = EVALS[name]
    value = max(0, run.number(name, 0)) if setting == "top_k" else single(run.flags[name])
    return {f"eval.{dataset}.{setting}": value for dataset in sets}


def _evaluation(run: Run, name: str, path: str) -> dict[str, Any]:
    """All of one set: what it has no flag for is as in the rollouts."""
    settings: dict[str, Any] = {f"eval.{name}.data": path, "eval_prompts": 100_000}
    settings[f"eval.{name}.temperature"] = run.real("rollout-temperature", 1)
    for flag, (setting, fallback) in EVALS.items():
        if not run.has(flag) and run.has(fallback):
            value = literal(run.text(fallback))
            settings[f"eval.{name}.{setting}"] = max(0, value) if setting == "top_k" else value
    if run.has("apply-chat-template"):
        settings[f"eval.{name}.source.chat_template"] = True
    return settings
