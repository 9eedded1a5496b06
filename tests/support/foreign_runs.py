"""Runs of verl and TRL, translated: what the table of docs/migrating_from_verl_and_trl.md says of each.

`python tests/support/foreign_runs.py` prints the rows.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rlcore import dump_settings, published_sizes
from rlcore.plugins.loader import load
from rlcore.plugins.registry import Registry
from rlcore_cli.main import run
from rlcore_import.translation import FlagVerdict, Translation
from rlcore_import.trl.program import read as read_trl
from rlcore_import.trl.translate import translate as translate_trl
from rlcore_import.verl.overrides import of_words
from rlcore_import.verl.translate import translate as translate_verl

HERE = Path(__file__).parent
_LINES: Mapping[str, list[str]] = json.loads((HERE / "verl_runs.json").read_text())
VERL = tuple(name for name in _LINES if name != "base")
"""Scripts in verl's examples. In the file are their settings, over those of `base`; ~KEY takes one away."""
TRL: Mapping[str, str] = tomllib.loads((HERE / "trl_programs.toml").read_text())
FLAGS = {
    "grpo_reward_model": "--dataset_name trl-lib/tldr --model_name_or_path Qwen/Qwen3-1.7B "
    "--importance_sampling_level sequence --epsilon 3e-4 --epsilon_high 4e-4 --num_processes 2"
}
"""What is typed behind the program."""
VERDICTS = (FlagVerdict.TRANSLATED, FlagVerdict.IMPLIED, FlagVerdict.IDLE, FlagVerdict.IMPOSSIBLE)
CHAT = [{"role": "user", "content": "1 + 1?"}]
ANSWER = [*CHAT, {"role": "assistant", "content": "2"}]
ROW = {
    **{"prompt": CHAT, "reward_model": {"ground_truth": "2"}, "extra_info": {"i": 1}, "data_source": "x"},
    **{"answer": "2", "solution": "2", "messages": ANSWER},
}
PAIR = {"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}


def words_of(name: str) -> list[str]:
    """The overrides of a run of verl."""
    base, own = (" ".join(_LINES[key]).split() for key in ("base", name))
    gone = {word[1:] for word in own if word.startswith("~")}
    kept = [word for word in base if word.partition("=")[0] not in gone]
    return [*kept, *(word for word in own if not word.startswith("~"))]


def translated(name: str, registry: Registry, folder: Path) -> Translation[Any]:
    """`folder`: where a program of TRL is written."""
    if name in TRL:
        program = folder / f"{name}.py"
        program.write_text(TRL[name])
        return translate_trl(read_trl((str(program), *FLAGS.get(name, "").split()), {}), registry)
    return translate_verl(of_words(words_of(name)), registry)


def write_inputs(name: str, translation: Translation[Any], registry: Registry) -> Path:
    """Here: the model's configuration, the data and the rewards that the translation names, and its TOML."""
    settings = translation.settings
    sizes = published_sizes(registry)
    size = next((size for size in ("30b_a3b", "16b_a3b") if size in name), "8b")
    model = {"30b_a3b": "qwen3-30b-a3b", "16b_a3b": "moonlight-16b-a3b", "8b": "qwen3-8b"}[size]
    config = json.loads(sizes[model].read_text())
    _write_config("model", config)
    _write_config("scorer", config | {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1})
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([PAIR if name == "dpo_pairs" else ROW]), "a.parquet"
    )
    for file, text in translation.files.items():
        Path(file).write_text(text)
    data = settings["data"]
    several = [f"{one.partition('=')[0]}=a.parquet" for one in data]
    settings |= {"model": "model", "data": several if isinstance(data, list) else "a.parquet"}
    settings |= {key: "a.parquet" for key in settings if key.startswith("eval.") and key.endswith(".data")}
    if "critic.model" in settings:
        settings["critic.model"] = "model"
    if "frozen" in settings:
        kind = "scorer" if "reward_model" in settings["reward"] else "model"
        settings["frozen"] = [f"{one.partition('=')[0]}={kind}" for one in settings["frozen"]]
    Path("run.toml").write_text(dump_settings(settings))
    return Path("run.toml")


def _write_config(folder: str, config: Mapping[str, Any]) -> None:
    Path(folder).mkdir()
    Path(folder, "config.json").write_text(json.dumps(config))


def row(name: str, registry: Registry, folder: Path) -> str:
    """The table's row of a run. `folder`: an empty one."""
    translation = translated(name, registry, folder)
    counts = Counter(one.outcome.verdict for one in translation.rows)
    assert set(counts) <= set(VERDICTS), f"{name}: {counts}"
    with contextlib.chdir(folder):
        path = write_inputs(name, translation, registry)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["train", "--config", str(path), "--dry-run"])
    said = "passes" if code == 0 else err.getvalue().strip().removeprefix("error: ").replace(str(folder), "")
    algo = translation.settings["algo"]
    numbers = ", ".join(str(counts[verdict]) for verdict in VERDICTS)
    return f"| `{name}` | `{algo}`, `{translation.settings.get('trainer')}` | {numbers} | {said} |"


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    for each in sys.argv[1:] or (*VERL, *TRL):
        with tempfile.TemporaryDirectory() as made:
            print(row(each, load().registry, Path(made)))
