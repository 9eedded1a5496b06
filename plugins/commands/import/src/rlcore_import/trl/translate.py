"""From the flags of a run of TRL to a translation."""

from dataclasses import replace
from typing import Any

from rlcore import Registry
from rlcore_import.arguments import Arguments
from rlcore_import.table import Table
from rlcore_import.translation import Outcome, Row, Translation, functions_of, impossible
from rlcore_import.trl import settings
from rlcore_import.trl.rewards import imported
from rlcore_import.trl.run import LEARNING_RATES, Run

COMPUTED = functions_of(settings)
PEFT_TARGETS = ["q_proj", "v_proj"]
"""Where PEFT puts an adapter if nothing says it, in most families."""


def table() -> Table:
    """What rlcore knows of TRL's flags."""
    return Table.of("trl", "settings.toml")


def translate(arguments: Arguments, registry: Registry) -> Translation[Run]:
    """Every flag in its turn, over what TRL does where none says otherwise. ConfigError."""
    functions = [name for name in arguments.flags.get("--reward_funcs", ()) if "/" not in name]
    if functions and not arguments.files and "$" not in "".join(functions):
        arguments = replace(arguments, files={"rewards.py": imported(functions)})
    run = Run.of(arguments, registry)
    translation = Translation(table(), COMPUTED, run, settings=_defaults(run), files=dict(arguments.files))
    for flag, values in arguments.flags.items():
        translation.add(flag, values)
    if run.kind == "sft" and not run.has("assistant_only_loss"):
        why = "TRL's default; of a chat, the messages of the assistant alone are learned"
        translation.append(Row("--assistant_only_loss", ("false",), impossible(why)))
    return translation


def _defaults(run: Run) -> dict[str, Any]:
    """What TRL does without a flag, and rlcore does not."""
    defaults: dict[str, Any] = {"algo": run.kind, "trainer": "fsdp", "trainer.recompute": True, "seed": 42}
    defaults |= {"lr": LEARNING_RATES[run.kind], "lr_schedule": "linear", "epochs": 3, "ranks": run.devices}
    defaults |= {"save_every": 500 // (run.minibatches or 1), "eval_every": 0, "entropy_coef": 0.0}
    parts = [settings.batch(run, ""), settings.lengths(run, "")]
    if run.kind == "grpo":
        defaults |= {"normalizer": "per_token", "advantage.eps": 1e-4, "source.columns_as_metadata": True}
        parts += [settings.loss(run, ""), settings.clip(run, ""), settings.correction(run, "")]
    elif run.kind == "sft":
        defaults["source.response_key"] = "completion"
    else:
        defaults["loss.beta"] = 0.1
    for part in parts:
        found = part.settings if isinstance(part, Outcome) else part
        defaults |= {name: value for name, value in found.items() if value is not None}
    if run.is_on("use_peft"):
        defaults |= {"lora.rank": run.number("lora_r", 16), "lora.alpha": run.real("lora_alpha", 32)}
        defaults["lora.dropout"] = run.real("lora_dropout", 0.05)
        if not run.has("lora_target_modules"):
            defaults["lora.targets"] = PEFT_TARGETS
    return defaults
