"""slime's run scripts at a size that this machine trains: the translated run, fewer ranks, a small model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from families import DELTA_NETS, FAMILIES
from inputs import chats, make_model, write_jsonl
from slime_runs import SCRIPTS

from rlcore_testing.mtp import publish_mimo, publish_mtp
from rlcore_testing.nested import make_nested

PARALLEL = {
    "tensor": "megatron.tensor_model_parallel_size",
    "pipeline": "megatron.pipeline_model_parallel_size",
    "context": "megatron.context_parallel_size",
    "expert": "megatron.expert_model_parallel_size",
}
FIRST, LAST = (f"megatron.num_layers_in_{name}_pipeline_stage" for name in ("first", "last"))
SEQUENCE = "megatron.sequence_parallel"
STEPS, PROMPTS, GROUP = 2, 8, 4
SMALL = {
    **{"engine": "local", "engines": 1, "dtype": "fp32", "steps": STEPS, "lr": 1e-5, "save_every": 0},
    **{"prompts_per_step": PROMPTS, "max_prompt_tokens": 96, "max_response_tokens": 24},
    **{"tokens_per_rank": 1024, "eval_prompts": 4},
}
FOREIGN = (
    "sglang.",
    "engine_group",
    "engine.",
    "tracker",
    "stop_token_ids",
    "epochs",
    "eval",
    *PARALLEL.values(),
    FIRST,
    LAST,
    SEQUENCE,
)
"""What belongs to the published model, to SGLang, or to the sizes of the layout."""
PLACES = ("placement", "sleep")
"""Of trainer and engines. A split is of GPUs, and one rank is the plain run to compare with."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """`sizes`: of a rank's parallel groups. `mtp`: a layer for multi-token prediction is trained too.

    `rounding`: what the first loss may differ by, which is 0 but for it.
    """

    model_type: str
    ranks: int
    sizes: Mapping[str, int]
    last: int | None = None
    mtp: bool = False
    rounding: float = 1e-9

    @property
    def name(self) -> str:
        """Such as `TP 2, EP 4`."""
        short = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP"}
        found = [f"{short[key]} {size}" for key, size in self.sizes.items()]
        uneven = [f"last stage {self.last} of 4 layers"] if self.last else []
        draft = ["multi-token prediction"] if self.mtp else []
        return ", ".join([*found, *uneven, *draft, f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"])


SCALED: Mapping[str, Scaled] = {name: Scaled(**script["scaled"]) for name, script in SCRIPTS.items()}
"""Script → how it is trained here."""


def small_run(settings: Mapping[str, Any], scaled: Scaled | None, root: Path, model: Path) -> dict[str, Any]:
    """`settings` of a translated run at the size of `scaled` (None: on one rank), with data under `root`."""
    keeps_places = scaled is not None and settings.get("placement") == "colocate"
    left_out = FOREIGN if keeps_places else (*FOREIGN, *PLACES)
    kept = {key: value for key, value in settings.items() if not key.startswith(left_out)}
    is_sft = settings["algo"] == "sft"
    found = {**kept, **SMALL, "model": str(model), "data": str(write_data(root, settings))}
    if not is_sft:
        found |= {"reward": ["f1"], "group_size": GROUP, "minibatches": min(2, settings["minibatches"])}
    if scaled is None:
        return found | {"ranks": 1}
    found |= {"ranks": scaled.ranks, **{PARALLEL[name]: size for name, size in scaled.sizes.items()}}
    found |= {LAST: scaled.last} if scaled.last else {}
    return found | ({SEQUENCE: True} if "tensor" in scaled.sizes else {})


def write_model(root: Path, scaled: Scaled) -> Path:
    """A small model of the family, with 4 layers; Qwen3.5 beside a vision tower, as it is published."""
    kind = scaled.model_type
    settings = {**FAMILIES, **DELTA_NETS}.get(kind, {})
    path = make_model(root / kind, kind, **settings, num_hidden_layers=4 + scaled.mtp)
    if kind.startswith("qwen3_5"):
        return make_nested(path, root / "nested")
    if scaled.mtp:
        (publish_mimo if kind == "qwen2" else publish_mtp)(path)
    return path


def write_data(root: Path, settings: Mapping[str, Any]) -> Path:
    """Prompts with labels, or whole chats, under the key that `settings` name."""
    path, rows = root / "train.jsonl", chats(64, seed=3)
    key = settings.get("source.prompt_key")
    if key is not None:
        return write_jsonl(path, [{key: row["prompt"], "label": row["label"]} for row in rows])
    answers = [{"role": "assistant", "content": row["label"]} for row in rows]
    whole = [[*row["prompt"], answer] for row, answer in zip(rows, answers, strict=True)]
    return write_jsonl(path, [{settings["source.messages_key"]: chat} for chat in whole])
