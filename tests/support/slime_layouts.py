"""slime's run scripts at a size that this machine trains: the translated run, fewer ranks, a small model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from families import DELTA_NETS, FAMILIES
from inputs import chats, make_model, write_jsonl

from rlcore_testing.mtp import publish_mimo, publish_mtp
from rlcore_testing.nested import make_nested

PARALLEL = {
    "tensor": "megatron.tensor_model_parallel_size",
    "pipeline": "megatron.pipeline_model_parallel_size",
    "context": "megatron.context_parallel_size",
    "expert": "megatron.expert_model_parallel_size",
}
LAST, SEQUENCE = "megatron.num_layers_in_last_pipeline_stage", "megatron.sequence_parallel"
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
    LAST,
    SEQUENCE,
)
"""What belongs to the published model, to SGLang, or to the sizes of the layout."""
PLACES = ("placement", "sleep")
"""Of trainer and engines. A split is of GPUs, and one rank is the plain run to compare with."""
ALL = {"tensor": 2, "pipeline": 2, "context": 2, "expert": 4}


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """`sizes`: of a rank's parallel groups. `covers`: scripts with the same kinds of parallelism.

    `mtp`: the model has a layer for multi-token prediction, which is trained.
    """

    model_type: str
    ranks: int
    sizes: Mapping[str, int]
    covers: tuple[str, ...] = field(default=())
    last: int | None = None
    mtp: bool = False

    @property
    def name(self) -> str:
        """Such as `TP 2, EP 4`."""
        short = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP"}
        found = [f"{short[key]} {size}" for key, size in self.sizes.items()]
        uneven = [f"last stage {self.last} of 4 layers"] if self.last else []
        draft = ["multi-token prediction"] if self.mtp else []
        return ", ".join([*found, *uneven, *draft, f"{self.ranks} ranks"])


SCALED: Mapping[str, Scaled] = {
    "qwen2.5-0.5B-reproducibility": Scaled(
        model_type="qwen2", ranks=2, sizes={}, covers=("qwen2.5-0.5B-gb10-smoke",)
    ),
    "qwen3-32B": Scaled(
        model_type="qwen3", ranks=4, sizes={"tensor": 2}, covers=("qwen3-4B", "qwen3-4B-amd")
    ),
    "glm4-9B": Scaled(model_type="glm4", ranks=4, sizes={"tensor": 2, "context": 2}),
    "qwen3-30B-A3B": Scaled(
        model_type="qwen3_moe", ranks=4, sizes={"tensor": 2, "expert": 4}, covers=("moonlight-16B-A3B",)
    ),
    "qwen3-4B-base-sft": Scaled(model_type="qwen3", ranks=2, sizes={}),
    "qwen3-235B-A22B-sft": Scaled(model_type="qwen3_moe", ranks=4, sizes={"tensor": 2, "expert": 4}),
    "qwen3-235B-A22B": Scaled(model_type="qwen3_moe", ranks=8, sizes=ALL, last=1),
    "glm4.7-355B-A32B": Scaled(model_type="glm4_moe", ranks=8, sizes=ALL),
    "glm5-744B-A40B": Scaled(model_type="glm_moe_dsa", ranks=8, sizes=ALL, covers=("glm5.2-744B-A40B",)),
    "minimax-m2": Scaled(model_type="minimax_m2", ranks=8, sizes={"tensor": 2, "pipeline": 2, "expert": 4}),
    "kimi-k2-Thinking": Scaled(
        model_type="deepseek_v3", ranks=8, sizes=ALL, last=1, covers=("kimi-k2-Instruct",)
    ),
    "deepseek-r1": Scaled(model_type="deepseek_v3", ranks=8, sizes=ALL, last=1),
    "glm4.7-30B-A3B": Scaled(model_type="glm4_moe_lite", ranks=8, sizes=ALL, last=1, mtp=True),
    "mimo-7B-rl-eagle": Scaled(model_type="qwen2", ranks=2, sizes={"tensor": 2}, mtp=True),
    "qwen3-next-80B-A3B": Scaled(model_type="qwen3_next", ranks=8, sizes=ALL, last=1),
    "qwen3.5-27B": Scaled(
        model_type="qwen3_5_text", ranks=8, sizes={"tensor": 2, "pipeline": 2, "context": 2}, last=1
    ),
    "qwen3.5-35B-A3B-sft": Scaled(model_type="qwen3_5_moe_text", ranks=4, sizes={"tensor": 2, "expert": 4}),
}
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
