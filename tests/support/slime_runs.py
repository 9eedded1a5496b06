"""slime's 23 run scripts as lists of arguments, and the files that they name."""

import json
import tomllib
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

SCRIPTS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("slime_scripts.toml").read_text()
)
SIZES: Mapping[str, str] = {name: script["size"] for name, script in SCRIPTS.items()}
"""Script → the published size that it trains."""
FP8 = frozenset(name for name, script in SCRIPTS.items() if "fp8" in script)
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
