"""What flags of TRL mean together, and how programs are read."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from program import Program

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_import.translation import FlagVerdict, Translation
from rlcore_import.trl.program import of_words, read
from rlcore_import.trl.run import Run
from rlcore_import.trl.translate import translate

REGISTRY = load().registry


def translated(text: str) -> Translation[Run]:
    return translate(of_words(text.split()), REGISTRY)


def of_program(folder: Path, text: str) -> Translation[Run]:
    path = folder / "train.py"
    path.write_text(text)
    return translate(read((str(path),), {}), REGISTRY)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("--num_iterations 4", "not possible"),
        ("--num_generations 3", "not possible"),
        ("--max_steps 10 --steps_per_generation 4", "not possible"),
        ("--loss_type dft", "not possible"),
        ("--scale_rewards batch", "not possible"),
        ("--repetition_penalty 1.1", "not possible"),
        ("--optim adamw_8bit", "not possible"),
        ("--load_in_4bit True", "not possible"),
        ("--dataset_name a/b --dataset_split train[:5%]", "not possible"),
        ("dpo --loss_type sigmoid sft", "not possible"),
        ("--load_in_4bit False", "implied"),
        ("--delta None", "implied"),
        ("--off_policy_mask_threshold 0.1", "implied"),
        ("--vllm_mode server", "implied"),
        ("--dataset_num_proc 4", "no meaning"),
        ("--num_generation 4", "unknown"),
        ("--load_in_8bit no", "implied"),
        ("--mask_truncated_completions 0", "implied"),
        ("--lora_r 8 --use_peft $X", "not known"),
        ("--lora_r 8 --use_peft no --lora_alpha $X", "implied"),
    ],
)
def test_verdicts(text: str, verdict: str) -> None:
    assert translated(text).rows[0].outcome.verdict is FlagVerdict(verdict)


@pytest.mark.parametrize(
    ("kwargs", "outcome"),
    [
        ({"temperature": 0.5}, "temperature: found 0.5, unlike --temperature; give --temperature alone"),
        ({"max_new_tokens": 9}, "max_new_tokens: give --max_completion_length"),
        ({"stop": ["a"], "stop_strings": "b", "temperature": 0.9}, {"stop": ["a", "b"], "temperature": 0.9}),
    ],
)
def test_what_the_engine_is_given(kwargs: dict[str, Any], outcome: Any) -> None:
    words = ["--temperature", "0.9", "--generation_kwargs", json.dumps(kwargs)]
    [_, row] = translate(of_words(words), REGISTRY).rows
    assert outcome in (row.outcome.settings, row.outcome.text)


def test_supervised_learning_of_whole_chats_is_said_to_differ() -> None:
    assert translated("sft --learning_rate 1e-5").rows[-1].outcome.verdict is FlagVerdict.IMPOSSIBLE


PROGRAM = """
import os
from datasets import load_dataset
from helpers import score
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import get_soft_overlong_punishment

LENGTH = 1 << 3
raise SystemExit("never run")

def grade(text):
    return score(text) * BONUS

BONUS = 2.0

def good(completions, **kwargs):
    return [grade(text) for text in completions]

rows = load_dataset("a/b", split=f"train{'[:5]'}")
rows = rows.map(str)
size = 2 * 4
config = GRPOConfig(
    learning_rate=RATE, temperature=0.5 + 0.25, max_completion_length=LENGTH,
    per_device_train_batch_size=size, num_generations=size, logging_steps=-1, seed=int(os.environ["SEED"]),
)
GRPOTrainer("m/n", [good, get_soft_overlong_punishment(8, 2)], config, rows)
trainer = GRPOTrainer(
    model="m/n", reward_funcs=[good, get_soft_overlong_punishment(8, 2)], args=config, train_dataset=rows
)
"""


def test_a_program_is_read_and_not_run(tmp_path: Path, program: Program) -> None:
    path, out = tmp_path / "train.py", tmp_path / "run.toml"
    with pytest.raises(ConfigError, match="found GRPOTrainer, GRPOTrainer, exp"):
        of_program(tmp_path, PROGRAM)
    path.write_text(PROGRAM.replace('GRPOTrainer("m/n"', 'print("m/n"'))
    found = translate(read((str(path), "--seed", "7"), {"RATE": "3e-6"}), REGISTRY)
    wanted = {"lr": 3e-6, "temperature": 0.75, "model": "m/n", "data": "train.jsonl", "seed": 7}
    assert wanted.items() <= found.settings.items()
    verdicts = {row.flag: row.outcome.verdict for row in found.rows}
    assert verdicts["--max_completion_length"] is FlagVerdict.OPEN  # a shift
    assert verdicts["--dataset.map"] is FlagVerdict.IMPOSSIBLE, "it names the file to write"
    program("import", "trl", str(path), "-o", str(out))
    assert "--learning_rate. Add --var RATE=VALUE" in program.err
    rewards = tmp_path / "train_rewards.py"
    assert tomllib.loads(out.read_text())["reward"] == [f"{rewards}:good", f"{rewards}:reward_1"]
    text = rewards.read_text()
    assert text.index("def grade") < text.index("BONUS = 2.0") < text.index("def good")
    assert "reward_1 = get_soft_overlong_punishment(8, 2)" in text
    assert not any(word in text for word in ("SystemExit", "load_dataset", "GRPOTrainer"))


FILES = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

kwargs = {"stop": ["</answer>"], "top_p": 0.9}
GRPOTrainer(
    "m/n", reward_funcs="a/b", args=GRPOConfig(generation_kwargs=kwargs, eval_strategy="steps"),
    train_dataset=load_dataset("json", data_files="train.jsonl", split="train[:9]"),
    eval_dataset=load_dataset("json", data_files={"test": "test.parquet"}, split="test"),
)
"""


LOADED = """
from trl import SFTTrainer
base = "m/n"
{}
SFTTrainer(model, args=SFTConfig(), train_dataset=load_dataset("a/b"))
"""
UNSLOTH = "model, tokenizer = FastLanguageModel.from_pretrained(model_name=base, load_in_4bit=True)"
ADAPTED = {"lora.rank": 4, "lora.targets": ["q_proj"]}
FIELDS = "r=4, target_modules=['q_proj']"


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ('model = AutoModelForCausalLM.from_pretrained(base, device_map=None).to("cuda").train()', {}),
        (
            f"{UNSLOTH}\nmodel = FastLanguageModel.get_peft_model(model, {FIELDS}, random_state=1)",
            {**ADAPTED, "trainer.quantize_base": "nf4"},
        ),
        (
            "model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config)\n"
            f"config = BitsAndBytesConfig(load_in_8bit=True)\nlora = LoraConfig({FIELDS})\n"
            "model = get_peft_model(model, lora)",
            ADAPTED,
        ),
    ],
)
def test_a_model_that_is_loaded(lines: str, settings: dict[str, Any], tmp_path: Path) -> None:
    found = of_program(tmp_path, LOADED.format(lines))
    assert {"model": "m/n", **settings}.items() <= found.settings.items()
    assert ("lora.rank" in found.settings) == bool(settings)
    assert not [row.flag for row in found.rows if row.outcome.verdict is FlagVerdict.UNKNOWN]


GIVEN_LATER = """
more = dict(max_steps=5)
config = SFTConfig(**more, **{"seed": 3})
config.learning_rate = 1e-4
SFTTrainer("m/n", args=config, train_dataset=load_dataset("a/b"))
"""


def test_settings_of_a_table_and_of_later_lines(tmp_path: Path) -> None:
    found = of_program(tmp_path, GIVEN_LATER).settings
    assert {"steps": 5, "seed": 3, "lr": 1e-4}.items() <= found.items()
    with pytest.raises(ConfigError, match=r"line 3: found \*\*more, which the program computes"):
        of_program(tmp_path, GIVEN_LATER.replace("dict(max_steps=5)", "json.load(file)"))


ELSEWHERE = """
config = SFTConfig(learning_rate=1e-5, seed=3)
def other(config):
    config.seed = 4
def change():
    config.gradient_accumulation_steps = 2
if debug:
    config.learning_rate = 1e-4
config.max_steps = 5
SFTTrainer("m/n", args=config, train_dataset=load_dataset("a/b"))
config.warmup_steps = 6
"""


def test_what_lines_elsewhere_assign_is_not_known(tmp_path: Path) -> None:
    found = of_program(tmp_path, ELSEWHERE)
    assert {"steps": 5, "seed": 3}.items() <= found.settings.items()
    unknown = {row.flag for row in found.rows if row.outcome.verdict is FlagVerdict.OPEN}
    assert unknown == {"--learning_rate", "--gradient_accumulation_steps", "--warmup_steps"}


@pytest.mark.parametrize("word", ["1", "yes", "true", "T", "y", "0", "no", "False", "f", "n"])
def test_words_for_true_and_false(word: str) -> None:
    text = f"--use_peft {word} --use_rslora {word} --gradient_checkpointing {word} --shuffle_dataset {word}"
    found, is_on = translated(text).settings, word in ("1", "yes", "true", "T", "y")
    assert (found["trainer.recompute"], found["shuffle"]) == (is_on, is_on)
    assert type(found["trainer.recompute"]) is bool
    assert (found.get("lora.rslora"), found.get("lora.rank")) == ((True, 16) if is_on else (None, None))


def test_a_yaml_of_the_command_and_flags_over_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("max_prompt_length: 64\nseed: 3\nmax_completion_length: 8\n")
    found = translate(read(("grpo", "--config", str(path), "--seed", "4"), {}), REGISTRY).settings
    assert {"max_prompt_tokens": 64, "max_response_tokens": 8, "seed": 4}.items() <= found.items()


def test_files_and_stops_of_a_program(tmp_path: Path) -> None:
    found = of_program(tmp_path, FILES).settings
    wanted = {
        "data": "train.jsonl[:9]",
        "eval.test.data": "test.parquet",
        "stop": ["</answer>"],
        "top_p": 0.9,
    }
    assert wanted.items() <= found.items()
    other = FILES.replace("top_p", "penalty_alpha").replace("train.jsonl", "train.csv")
    found = of_program(tmp_path, other).settings
    assert not {"data", "stop"} & found.keys()
