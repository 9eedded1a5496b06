"""slime's 23 run scripts as lists of arguments, and the files that they name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rlcore import published_sizes
from rlcore.plugins.registry import Registry
from rlcore_import.arguments import of_words
from rlcore_import.slime.run import Run
from rlcore_import.slime.translate import translate
from rlcore_import.translation import Translation

RUNS: Mapping[str, list[str]] = {
    name: " ".join(lines).split()
    for name, lines in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
}
"""Script → its program, and its arguments as words; those of the model, which config.json says here, last."""

GROUPS, GROUPS_NAME = Path(__file__).with_name("slime_groups.yaml"), "groups.yaml"
"""What `--sglang-config` of glm5.2-744B-A40B names."""

SIZES: Mapping[str, str] = {
    "deepseek-r1": "deepseek-v3",
    "glm4-9B": "glm-4-9b",
    "glm4.7-30B-A3B": "glm-4.7-flash",
    "glm4.7-355B-A32B": "glm-4.5",
    "glm5-744B-A40B": "glm-5",
    "glm5.2-744B-A40B": "glm-5.2",
    "kimi-k2-Instruct": "kimi-k2",
    "kimi-k2-Thinking": "kimi-k2",
    "mimo-7B-rl-eagle": "mimo-7b",
    "minimax-m2": "minimax-m2",
    "moonlight-16B-A3B": "moonlight-16b-a3b",
    "qwen2.5-0.5B-gb10-smoke": "qwen2.5-0.5b",
    "qwen2.5-0.5B-reproducibility": "qwen2.5-0.5b",
    "qwen3-235B-A22B": "qwen3-235b-a22b",
    "qwen3-235B-A22B-sft": "qwen3-235b-a22b",
    "qwen3-30B-A3B": "qwen3-30b-a3b",
    "qwen3-32B": "qwen3-32b",
    "qwen3-4B": "qwen3-4b",
    "qwen3-4B-amd": "qwen3-4b",
    "qwen3-4B-base-sft": "qwen3-4b",
    "qwen3-next-80B-A3B": "qwen3-next-80b-a3b",
    "qwen3.5-27B": "qwen3.5-27b",
    "qwen3.5-35B-A3B-sft": "qwen3.5-35b-a3b",
}
"""Script → the published size that it trains."""


FP8 = frozenset(
    {
        "deepseek-r1",
        "glm5.2-744B-A40B",
        "kimi-k2-Instruct",
        "kimi-k2-Thinking",
        "minimax-m2",
        "qwen3-235B-A22B",
    }
)
"""Scripts whose `--hf-checkpoint` is a model that is published in FP8, or says so by its name."""
BLOCKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}


def translated(name: str, registry: Registry, more: str = "") -> Translation[Run]:
    """What `rlcore import slime` makes of the script and the flags `more`.

    Of the files that it names, the server groups alone are there.
    """
    words = [str(GROUPS) if word == GROUPS_NAME else word for word in RUNS[name]]
    return translate(of_words([*words, *more.split()]), registry)


def write_inputs(folder: Path, name: str, settings: Mapping[str, Any], registry: Registry) -> None:
    """In `folder`, the model and the data that `settings` name."""
    model = folder / settings["model"]
    model.mkdir(parents=True)
    config = json.loads(published_sizes(registry)[SIZES[name]].read_text())
    if name in FP8:
        config["quantization_config"] = BLOCKS
    (model / "config.json").write_text(json.dumps(config))
    for key, value in settings.items():
        if key == "data" or (key.startswith("eval.") and key.endswith(".data")):
            _write_prompts(folder / value)


def _write_prompts(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    row = {"prompt": "1 + 1?", "label": "2", "messages": chat}
    if path.suffix == ".jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
