"""What flags of TRL become.

Each public function is what `settings.toml` names by `by`: of a run and the name of one of its flags, without
dashes, it gives the settings that stand for the flag, or says why there are none.
"""

from pathlib import Path
from typing import Any

from rlcore import parse_json
from rlcore_import.run import Settings
from rlcore_import.trackers import trackers
from rlcore_import.translation import Outcome, implied, impossible, translated
from rlcore_import.trl.run import Run

NORMALIZERS = {"grpo": "per_rollout", "dapo": "per_token", "bnpo": "per_token", "dr_grpo": "constant"}
LOSSES = {"cispo": "per_token", "sapo": "per_rollout", "luspo": "constant", "vespo": "per_token"}
"""`loss_type` with a recipe of that name → its denominator."""
FORMATS = ("json", "parquet", "csv")
"""What `load_dataset` calls files of one's own."""
SHARES = "rows are counted: --data PATH:SPLIT[:1000] (docs/data.md)"
CHANGES = (
    *("map", "filter", "rename_column", "rename_columns", "add_column", "add_item", "with_transform"),
    *("flatten", "cast", "cast_column", "sort", "shard", "take", "skip"),
)
"""Methods of a data set that make another one of it, which is in no file yet."""
ONE_FILE = "name the file: --data FILE.jsonl or FILE.parquet"
GENERATION = {
    **{name: name for name in ("stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p")},
    **{"stop_strings": "stop", "eos_token_id": "stop_token_ids"},
}
"""Keys of `generation_kwargs` that have a setting."""
LOSS_FIELDS = {
    **{"sapo_temperature_pos": "tau_pos", "sapo_temperature_neg": "tau_neg", "delta": "dual_clip"},
    **{f"vespo_{name}": name for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
}


def batch(run: Run, name: str) -> Outcome | Settings:
    """Completions in TRL, prompts here."""
    if not run.prompts:
        return impossible(
            f"{run.completions} completions of a step are no multiple of num_generations {run.group}"
        )
    if not run.minibatches:
        return impossible(
            f"{run.completions} completions of a step are no multiple of the batch of an optimizer step"
        )
    settings: dict[str, Any] = {"prompts_per_step": run.prompts}
    return settings | (
        {"minibatches": run.minibatches, "group_size": run.group} if run.kind == "grpo" else {}
    )


def lengths(run: Run, name: str) -> Settings:
    settings = {"max_prompt_tokens": run.prompt_tokens, "max_response_tokens": run.response_tokens}
    return {**settings, "tokens_per_rank": max(8192, run.prompt_tokens + run.response_tokens)}


def steps(run: Run, name: str) -> Outcome | Settings:
    most = run.number("max_steps", -1)
    if name == "num_train_epochs":
        epochs = run.real(name, 3)
        if most > 0:
            return implied("max_steps wins")
        whole = epochs == int(epochs) and epochs > 0
        return {"epochs": int(epochs)} if whole else impossible("--epochs is a whole number; or give --steps")
    if most <= 0:
        return implied("num_train_epochs counts")
    return _whole(run, most, "steps", {"epochs": None})


def _whole(run: Run, steps: int, setting: str, more: Settings | None = None) -> Outcome | Settings:
    """Optimizer steps as rollout batches."""
    each = run.minibatches or 1
    if steps % each:
        return impossible(f"a step here is {each} optimizer steps, which do not divide {steps}")
    return {setting: steps // each, **(more or {})}


def warmup(run: Run, name: str) -> Outcome | Settings:
    given = run.real(name, 0)
    return {"warmup_steps": given} if given < 1 else _whole(run, int(given), "warmup_steps")


def every(run: Run, name: str) -> Outcome | Settings:
    """save_steps and save_strategy, eval_steps and eval_strategy."""
    what = name.partition("_")[0]
    setting = f"{what}_every"
    strategy = run.text(f"{what}_strategy", "steps" if what == "save" else "no")
    if strategy == "no":
        return {setting: 0}
    if strategy != "steps":
        return impossible(f"{setting} counts steps; give --{what}_steps")
    given = run.real(f"{what}_steps", 500)
    return (
        _whole(run, int(given), setting) if given >= 1 else impossible("a share of all steps; give a number")
    )


def loss(run: Run, name: str) -> Outcome | Settings:
    kind, trainer = run.loss_type, run.kind
    if trainer == "sft":
        return (
            implied("the negative log-likelihood")
            if kind == "nll"
            else impossible("--loss sft has nll alone")
        )
    if trainer == "dpo":
        if kind not in ("sigmoid", "ipo") or len(run.flags.get("loss_type", ())) > 1:
            return impossible("--loss.form is sigmoid or ipo, one of them")
        return {"loss.form": kind}
    if kind in LOSSES:
        return {"algo": kind, "normalizer": LOSSES[kind], "filter": None}
    if kind not in NORMALIZERS:
        return impossible(f"expected one of {', '.join((*NORMALIZERS, *LOSSES))}")
    remark = "TRL's depends on the micro-batch" if kind == "bnpo" else ""
    return translated({"normalizer": NORMALIZERS[kind]}, remark)


def level(run: Run, name: str) -> Outcome | Settings:
    if run.text(name, "token") == "token":
        return implied("a ratio for each token")
    if run.loss_type not in NORMALIZERS:
        return impossible("only with the loss types grpo, dapo, bnpo and dr_grpo")
    return {"loss": "gspo"}


def clip(run: Run, name: str) -> Outcome | Settings:
    low = run.real("epsilon", 0.2)
    high = run.real("epsilon_high", low)
    if run.loss_type == "cispo":
        return (
            {"loss.clip_high": max(high - 1, 1e-6)}
            if run.has("epsilon_high")
            else implied("--loss.clip-high 4")
        )
    if run.loss_type in ("sapo", "vespo"):
        return implied(f"loss_type {run.loss_type} has no clip")
    return {"loss.clip_low": min(low, 1.0), "loss.clip_high": high}


def loss_field(run: Run, name: str) -> Outcome | Settings:
    prefix = name.partition("_")[0]
    if prefix in ("sapo", "vespo") and run.loss_type != prefix:
        return implied(f"only loss_type {prefix} reads it")
    if name == "delta" and run.loss_type not in NORMALIZERS:
        return implied(f"loss_type {run.loss_type} does not read it")
    return {f"loss.{LOSS_FIELDS[name]}": run.real(name, 1)}


def scale(run: Run, name: str) -> Outcome | Settings:
    kind = {"true": "group", "false": "none"}.get(run.text(name), run.text(name))
    if kind not in ("group", "none"):
        return impossible("--algo reinforce++-baseline divides by the deviation of the batch")
    return {"advantage.std": kind == "group"}


def beta(run: Run, name: str) -> Outcome | Settings:
    value = run.real("beta", 0.1 if run.kind == "dpo" else 0.0)
    if run.kind == "dpo":
        return {"loss.beta": value}
    if not value:
        return implied("there is no KL term, and no reference is loaded")
    unbiased = run.is_on("use_bias_correction_kl", True)
    return {"kl_coef": value, "kl_estimator": "k3", "kl_unbiased": unbiased}


def reference(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on("sync_ref_model"):
        return implied("the reference stays as it is")
    if run.real("ref_model_mixup_alpha", 0.6) != 1:
        return impossible("--reference.refresh-every copies the policy, as with ref_model_mixup_alpha 1")
    return _whole(run, run.number("ref_model_sync_steps", 512), "reference.refresh_every")


def quantile(run: Run, name: str) -> Outcome | Settings:
    share = run.real(name, 1)
    if share == 1:
        return implied("all tokens are trained on")
    return {"correction": ["top_entropy"], "correction.top_entropy.share": share}


def off_policy(run: Run, name: str) -> Outcome | Settings:
    if run.minibatches == 1:
        return implied("with one optimizer step for each generation, old and new log-probs are the same")
    return {"correction": ["opsm"], "correction.opsm.delta": run.real(name, 0)}


def correction(run: Run, name: str) -> Outcome | Settings:
    """TRL compares the trainer's log-probs with vLLM's, unless told not to."""
    if run.kind != "grpo" or not run.uses_vllm:
        return implied("without vLLM nothing is compared")
    if not run.is_on("vllm_importance_sampling_correction", True):
        return implied("no token is weighed")
    kind = run.text("vllm_importance_sampling_mode", "sequence_mask")
    level, _, mode = kind.partition("_")
    high, low = (
        run.real("vllm_importance_sampling_clip_max", 3.0),
        run.real("vllm_importance_sampling_clip_min", 0.0),
    )
    if level not in ("token", "sequence") or mode not in ("truncate", "mask"):
        return impossible("expected token_truncate, token_mask, sequence_truncate or sequence_mask")
    if kind == "token_truncate":
        return {"correction": ["tis"], "correction.tis.high": high, "correction.tis.low": low}
    mode = "clip" if low and mode == "truncate" else mode
    bounds = {"high": high} | ({} if mode == "truncate" else {"low": low})
    named = {
        f"correction.mis.{field}": value for field, value in {"level": level, "mode": mode, **bounds}.items()
    }
    return {"correction": ["mis"], **named}


def server(run: Run, name: str) -> Outcome:
    return translated({"engine_url": [run.text(name)]}, "a server of SGLang")


def vllm(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on(name):
        return implied("--engine is sglang with a GPU, else local")
    return translated({"engine": "sglang"}, "in place of vLLM")


def model(run: Run, name: str) -> Settings:
    return {"model": run.text(name).rstrip("/")}


def dtype(run: Run, name: str) -> Outcome | Settings:
    return {"dtype": "bf16"} if run.is_on(name) else {"dtype": "fp32"}


def quantized(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on(name):
        return implied("the base stays whole")
    if not run.is_on("use_peft") or run.text("bnb_4bit_quant_type", "nf4") != "nf4":
        return impossible("a base in four bits is NF4, below an adapter: --lora.rank")
    return {"trainer.quantize_base": "nf4"}


def rewards(run: Run, name: str) -> Outcome | Settings:
    """Functions from the file that is written beside the TOML, and reward models."""
    if run.kind != "grpo":
        return implied("nothing is scored")
    [file] = [*run.files] or ["rewards.py"]
    chosen: list[str] = []
    settings: dict[str, Any] = {}
    weights = run.flags.get("reward_weights", ())
    names = run.flags["reward_funcs"]
    for place, reward in enumerate(names):
        weight = f"={weights[place]}" if len(weights) == len(names) > 1 else ""
        if "/" in reward:
            if settings:
                return impossible("one reward model: --frozen NAME=MODEL --reward reward_model")
            settings = {"frozen": [f"rm={reward}"], "reward.reward_model.url": "frozen:rm"}
            chosen.append(f"reward_model{weight}")
        else:
            chosen.append(f"{file}:{reward.rpartition('.')[2]}{weight}")
    return {"reward": chosen, **settings}


def template(run: Run, name: str) -> Outcome | Settings:
    try:
        given = dict(parse_json(run.text(name)))
    except (TypeError, ValueError):
        return impossible("it is no table that can be read; give --source.chat-template-kwargs.NAME VALUE")
    return {f"source.chat_template_kwargs.{key}": value for key, value in given.items()}


def generation(run: Run, name: str) -> Outcome | Settings:
    """What is given to the engine as it is, by the names of transformers and of vLLM."""
    try:
        given = dict(parse_json(run.text(name)))
    except (TypeError, ValueError):
        return impossible("it is no table that can be read; give --stop, --temperature and the like")
    given = {key: value for key, value in given.items() if value is not None}
    if lengths := given.keys() & {"max_new_tokens", "max_tokens", "max_length"}:
        return impossible(f"{lengths.pop()}: give --max_completion_length")
    if unknown := [key for key in given if key not in GENERATION]:
        return impossible(f"{unknown[0]}: rlcore samples by temperature, top-p, top-k and min-p alone")
    settings: dict[str, Any] = {}
    for key, value in given.items():
        to = GENERATION[key]
        if to.startswith("stop"):
            settings[to] = [*settings.get(to, ()), *(value if isinstance(value, list) else [value])]
        elif run.real(key, 1 if key == "temperature" else value) != float(value):
            # TRL samples by this one, and computes log-probs at the temperature of the flag
            return impossible(f"{key}: found {value}, unlike --{key}; give --{key} alone")
        else:
            settings[to] = value
    return settings


def data(run: Run, name: str) -> Outcome | Settings:
    if not run.has("dataset_name"):
        return implied("without --dataset_name nothing is read")
    if _in_shares(run, "dataset"):
        return impossible(SHARES)
    location = _location(run, run.text("dataset_name"), "dataset")
    return {"data": location} if location else impossible(ONE_FILE)


def _in_shares(run: Run, name: str) -> bool:
    """Whether the split has rows in percent, or is the sum of several."""
    flag = "dataset_train_split" if name == "dataset" else "dataset_test_split"
    return any(sign in run.text(f"{name}_split", run.text(flag)) for sign in "%+")


def _location(run: Run, path: str, name: str) -> str:
    """A file here, or a data set of the hub with its configuration and split; empty: it is no such file.

    The file of changed rows is the one that the program is told to write.
    """
    if any(run.has(f"{name}.{method}") for method in CHANGES):
        return "train.jsonl" if name == "dataset" else "test.jsonl"
    if path in FORMATS:
        path = _file(run, name)
        rows = run.text(f"{name}_split").partition("[")[2]
        return f"{path}{f'[{rows}' if rows else ''}" if path else ""
    if Path(path).suffix in (".jsonl", ".parquet"):
        return path
    config = run.text(f"{name}_config")
    usual = "train" if name == "dataset" else "test"
    split = run.text("dataset_train_split" if name == "dataset" else "dataset_test_split", usual)
    split = run.text(f"{name}_split", split)
    head, _, rows = split.partition("[")
    return f"{path}{f'/{config}' if config else ''}:{head}{f'[{rows}' if rows else ''}"


def _file(run: Run, name: str) -> str:
    """The one file of `load_dataset("json", data_files=…)`; empty: there is none that rlcore reads."""
    files = list(run.flags.get(f"{name}.data_files", ()))
    if len(files) == 1 and files[0].startswith("{"):
        named = parse_json(files[0])
        usual = "train" if name == "dataset" else "test"
        files = [named.get(run.text(f"{name}_split", usual).partition("[")[0])]
    [file] = files if len(files) == 1 else [""]
    is_read = isinstance(file, str) and Path(file).suffix in (".jsonl", ".parquet") and "$" not in file
    return str(file) if is_read else ""


def evaluation(run: Run, name: str) -> Outcome | Settings:
    path = run.text("eval_dataset_name", run.text("dataset_name"))
    if run.text("eval_strategy", "no") == "no" or not path:
        return implied("there is no evaluation")
    if _in_shares(run, "eval_dataset"):
        return impossible(SHARES)
    samples = run.number("num_generations_eval", run.group) if run.kind == "grpo" else 1
    sampled = {"eval.test.samples": samples, "eval.test.temperature": run.real("temperature", 1.0)}
    if not (location := _location(run, path, "eval_dataset")):
        return impossible(ONE_FILE)
    return {"eval.test.data": location, **(sampled if run.kind == "grpo" else {})}


def tracker(run: Run, name: str) -> Outcome | Settings:
    others = [one for one in run.flags[name] if one not in ("none", "[]")]
    names = ["wandb", "tensorboard"] if others == ["all"] else [one for one in others if one != "all"]
    return trackers(names, "metrics.jsonl")


def wandb(run: Run, name: str) -> Outcome | Settings:
    if "wandb" not in run.flags.get("report_to", ()):
        return implied("the folder of the run has a name of its own")
    return {f"tracker.wandb.{name}": run.text(name)}


def adam(run: Run, name: str) -> Outcome | Settings:
    usual = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}[name]
    if run.real(name, usual) == usual:
        return implied(f"{usual}")
    return impossible("--trainer fsdp has AdamW's own; --trainer megatron takes --megatron.adam-beta2")


def assistant(run: Run, name: str) -> Outcome | Settings:
    """What supervised fine-tuning learns of a chat."""
    if run.is_on(name):
        return implied("of a chat, the messages of the assistant are learned")
    return impossible("of a chat, the messages of the assistant alone are learned")
