"""What flags of TRL mean together, and how programs are read."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_cli.main import run
from rlcore_import.translation import FlagVerdict, Translation
from rlcore_import.trl.program import of_words, read
from rlcore_import.trl.run import Run
from rlcore_import.trl.translate import translate

REGISTRY = load().registry
BATCH = "--per_device_train_batch_size 4 --gradient_accumulation_steps 4"


def translated(text: str) -> Translation[Run]:
    return translate(of_words(text.split()), REGISTRY)


CASES: dict[str, dict[str, Any]] = {
    "--num-processes 4": {
        **{"ranks": 4, "prompts_per_step": 4, "group_size": 8, "minibatches": 1, "epochs": 3, "seed": 42},
        **{"lr": 1e-6, "lr_schedule": "linear", "normalizer": "per_token", "advantage.eps": 1e-4},
        **{"max_response_tokens": 512, "kl_coef": None, "correction": None, "trainer": "fsdp"},
        **{"loss.clip_low": 0.2, "loss.clip_high": 0.2, "save_every": 500, "eval_every": 0},
    },
    f"{BATCH} --num_processes 8 --num_generations 16 --steps_per_generation 16 --max_steps 100": {
        **{"prompts_per_step": 32, "minibatches": 4, "steps": 25, "epochs": None, "save_every": 125},
    },
    "--generation_batch_size 64 --num_generations 4 --warmup_steps 16": {
        **{"prompts_per_step": 16, "minibatches": 8, "warmup_steps": 2},
    },
    "--max_completion_length 16384": {"max_response_tokens": 16384, "tokens_per_rank": 17408},
    "--beta 0.04 --use_bias_correction_kl False": {
        **{"kl_coef": 0.04, "kl_estimator": "k3", "kl_unbiased": False},
    },
    "--loss_type grpo --epsilon 0.1 --epsilon_high 0.3 --delta 2": {
        **{"normalizer": "per_rollout", "loss.clip_low": 0.1, "loss.clip_high": 0.3, "loss.dual_clip": 2.0},
    },
    "--loss_type cispo --epsilon_high 5.0": {"algo": "cispo", "loss.clip_high": 4.0, "filter": None},
    "--loss_type sapo --sapo_temperature_neg 1.1": {"algo": "sapo", "loss.tau_neg": 1.1},
    "--loss_type dr_grpo --scale_rewards none": {"normalizer": "constant", "advantage.std": False},
    "--importance_sampling_level sequence": {"loss": "gspo"},
    "--use_vllm True --vllm_tensor_parallel_size 2": {
        **{"engine": "sglang", "sglang.tp_size": 2, "correction": ["mis"], "correction.mis.mode": "mask"},
        **{"correction.mis.level": "sequence", "correction.mis.high": 3.0, "correction.mis.low": 0.0},
    },
    "--use_vllm True --vllm_importance_sampling_mode token_truncate": {
        **{"correction": ["tis"], "correction.tis.high": 3.0},
    },
    "--use_vllm True --vllm_importance_sampling_correction False": {"correction": None},
    "--use_peft": {"lora.rank": 16, "lora.alpha": 32.0, "lora.targets": ["q_proj", "v_proj"]},
    "--use_peft --lora_r 8 --lora_target_modules up_proj down_proj": {
        **{"lora.rank": 8, "lora.targets": ["up_proj", "down_proj"]},
    },
    "--reward_funcs accuracy_reward my.lib.terse --reward_weights 1.0 0.2": {
        "reward": ["rewards.py:accuracy_reward=1.0", "rewards.py:terse=0.2"],
    },
    "--dataset_name a/b --dataset_config c --dataset_train_split train[:10]": {"data": "a/b/c:train[:10]"},
    "--dataset_name rows.jsonl --eval_strategy steps --eval_steps 20 --eval_dataset_name a/b": {
        **{"data": "rows.jsonl", "eval_every": 20, "eval.test.data": "a/b:test", "eval.test.samples": 8},
    },
    "--sync_ref_model True --ref_model_mixup_alpha 1.0 --ref_model_sync_steps 64": {
        "reference.refresh_every": 64,
    },
    f"trl sft {BATCH} --max_length 2048 --assistant_only_loss True": {
        **{"algo": "sft", "prompts_per_step": 16, "max_prompt_tokens": 2048, "lr": 2e-5, "group_size": None},
    },
    f"dpo {BATCH} --num_processes 2 --loss_type ipo --beta 0.2": {
        **{"algo": "dpo", "prompts_per_step": 32, "loss.beta": 0.2, "loss.form": "ipo", "kl_coef": None},
    },
}


@pytest.mark.parametrize("text", CASES)
def test_settings(text: str) -> None:
    found = translated(text).settings
    assert {name: found.get(name) for name in CASES[text]} == CASES[text]


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


def test_a_program_is_read_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "train.py", tmp_path / "run.toml"
    path.write_text(PROGRAM)
    with pytest.raises(ConfigError, match="found GRPOTrainer, GRPOTrainer, exp"):
        read((str(path),), {})
    path.write_text(PROGRAM.replace('GRPOTrainer("m/n"', 'print("m/n"'))
    found = translate(read((str(path), "--seed", "7"), {"RATE": "3e-6"}), REGISTRY)
    wanted = {"lr": 3e-6, "temperature": 0.75, "model": "m/n", "data": "a/b:train[:5]", "seed": 7}
    assert wanted.items() <= found.settings.items()
    verdicts = {row.flag: row.outcome.verdict for row in found.rows}
    assert verdicts["--max_completion_length"] is FlagVerdict.OPEN  # a shift
    assert verdicts["--dataset.map"] is FlagVerdict.IMPOSSIBLE
    assert run(["import", "trl", str(path), "-o", str(out)]) == 0
    assert "--learning_rate. Add --var RATE=VALUE" in capsys.readouterr().err
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
    path = tmp_path / "train.py"
    path.write_text(LOADED.format(lines))
    found = translate(read((str(path),), {}), REGISTRY)
    assert {"model": "m/n", **settings}.items() <= found.settings.items()
    assert ("lora.rank" in found.settings) == bool(settings)
    assert not [row.flag for row in found.rows if row.outcome.verdict is FlagVerdict.UNKNOWN]


def test_a_yaml_of_the_command_and_flags_over_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("max_prompt_length: 64\nseed: 3\nmax_completion_length: 8\n")
    found = translate(read(("grpo", "--config", str(path), "--seed", "4"), {}), REGISTRY).settings
    assert {"max_prompt_tokens": 64, "max_response_tokens": 8, "seed": 4}.items() <= found.items()


def test_files_and_stops_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FILES)
    found = translate(read((str(path),), {}), REGISTRY).settings
    wanted = {
        "data": "train.jsonl[:9]",
        "eval.test.data": "test.parquet",
        "stop": ["</answer>"],
        "top_p": 0.9,
    }
    assert wanted.items() <= found.items()
    path.write_text(FILES.replace("top_p", "penalty_alpha").replace("train.jsonl", "train.csv"))
    found = translate(read((str(path),), {}), REGISTRY).settings
    assert not {"data", "stop"} & found.keys()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["gone.py"], "gone.py: No such file or directory."),
        (["gone.yaml"], "gone.yaml: found no YAML"),
        (["now", "--beta", "1"], "found 'now' before the first flag"),
        (["--num_generations", "many"], "--num_generations: found 'many', expected an integer."),
    ],
)
def test_what_cannot_be_is_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "trl", *args]) == 2
    assert sentence in capsys.readouterr().err
