"""GPUs, the model, and how both are divided.

Each public function is what `settings.toml` names by `by`, as those of `slime.placement` are.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from rlcore_import.run import Settings
from rlcore_import.translation import Outcome, idle, implied, impossible, literal, translated
from rlcore_import.verl import learning
from rlcore_import.verl.run import ACTOR, MEGATRON, MODEL, ROLLOUT, Run

MEGATRON_LAYERS = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
MOST_BUCKET_MB = 1024
OPTIMIZER: Mapping[str, Callable[[Run, str], Outcome | Settings]] = {
    "lr": learning.lr,
    "weight_decay": learning.decay,
    "clip_grad": learning.clip_grad,
    **dict.fromkeys(("lr_scheduler_type", "lr_decay_style"), learning.schedule),
    **dict.fromkeys(("min_lr_ratio", "min_lr"), learning.min_lr),
    **dict.fromkeys(("lr_warmup_steps", "lr_warmup_steps_ratio"), learning.warmup),
}
"""Fields of `critic.optim`."""


def trainer(run: Run, name: str) -> Outcome | Settings:
    kind = run.text(name)
    if "sft" in kind:
        return impossible("rlcore import verl reads runs of main_ppo")
    if run.trainer == "megatron" and not run.is_megatron:
        return translated({"trainer": "megatron"}, "--trainer fsdp divides no sample among ranks")
    is_same = re.search(r"fsdp|megatron|ppo_trainer|^dp$", kind)
    remark = "" if is_same else f"in place of {kind}"
    return translated({"trainer": run.trainer}, remark)


def engines(run: Run, name: str) -> Outcome | Settings:
    size = run.number(f"{ROLLOUT}.tensor_model_parallel_size", 2)
    stages = run.number(f"{ROLLOUT}.pipeline_model_parallel_size", 1)
    experts = run.number(f"{ROLLOUT}.expert_parallel_size", 1)
    settings: dict[str, Any] = {}
    if experts > size:  # experts are divided over all copies of the attention
        copies = run.number(f"{ROLLOUT}.data_parallel_size", 1)
        size *= copies
        settings = {"sglang.dp_size": copies, "sglang.enable_dp_attention": True}
    each, gpus = size * stages, run.engine_gpus
    if each < 1 or not gpus or gpus % each:
        return impossible(f"found {each} GPUs for an engine, expected a divisor of the {gpus} of all engines")
    settings["engines"] = gpus // each
    sizes = {"sglang.tp_size": size, "sglang.pp_size": stages, "sglang.ep_size": experts}
    settings |= {field: value for field, value in sizes.items() if value > 1}
    node = run.number("trainer.n_gpus_per_node", 8)
    return settings | ({"sglang.nnodes": each // node} if each > node else {})


def engine(run: Run, name: str) -> Outcome | Settings:
    chosen = run.text(name)
    known = chosen in ("sglang", "vllm", "trtllm")
    remark = "" if chosen == "sglang" else f"in place of {chosen}"
    return translated({"engine": "sglang"}, remark) if known else impossible("expected sglang or vllm")


def mode(run: Run, name: str) -> Outcome | Settings:
    kind = run.text(name, "sync")
    if kind == "colocate_async":
        return {"max_staleness": 1, "partial_rollouts": True}
    if kind == "separate_async":
        apart = {"placement": "split", "engine.publish": "broadcast", "sleep": None}
        return {**apart, "max_staleness": _staleness(run)}
    if kind != "sync":
        return impossible("expected sync, colocate_async or separate_async")
    return implied("--max-staleness 0")


def _staleness(run: Run) -> int:
    """verl counts the versions that a sample spans; here the distance counts."""
    return max(1, run.number("trainer.v1.sampler.max_off_policy_threshold", 8) - 1)


def off_policy(run: Run, name: str) -> Outcome | Settings:
    if not run.is_split:
        return implied("only for trainer_mode separate_async")
    if name.endswith("strategy"):
        return implied("--max-staleness waits, so that nothing gets too old and is dropped")
    return {"max_staleness": _staleness(run)}


def sync_step(run: Run, name: str) -> Outcome:
    if not run.is_split:
        return implied("only for trainer_mode separate_async")
    return implied("--minibatches: weights are published after a step's last one")


def sleep(run: Run, name: str) -> Outcome | Settings:
    if run.is_split:
        return implied("engines have devices of their own")
    table = name.rpartition(".")[0]
    if table not in (MEGATRON, f"{ACTOR}.fsdp_config"):
        return implied("models of the policy's workers sleep with it")
    weights, state = (run.is_on(f"{table}.{part}_offload") for part in ("param", "optimizer"))
    return {"sleep": "all" if weights else "optimizer" if state else "none"}


def host(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on(name):
        return implied("not asked for")
    if run.trainer == "fsdp":
        remark = "the optimizer's state; weights stay on the device"
        return translated({"trainer.optimizer_on_host": True}, remark)
    return {"megatron.optimizer_cpu_offload": True}


def reference(run: Run, name: str) -> Outcome | Settings:
    if not run.kl_place:
        return implied("there is no reference")
    if run.lora_rank:
        return implied("the reference is the policy without its adapter")
    return {"reference.placement": "swapped" if run.is_on(name) else "resident"}


def model(run: Run, name: str) -> Settings:
    return {"model": run.text(name).rstrip("/")}


def critic_model(run: Run, name: str) -> Outcome | Settings:
    if run.estimator != "gae":
        return implied("only adv_estimator gae has a critic")
    path = run.text(name).rstrip("/")
    same = path == run.text(f"{MODEL}.path").rstrip("/")
    return implied("the critic starts from --model, with a new head") if same else {"critic.model": path}


def critic(run: Run, name: str) -> Outcome | Settings:
    """A setting of the critic, where there is one."""
    if run.estimator != "gae":
        return implied("only adv_estimator gae has a critic")
    last = name.rpartition(".")[2]
    if last == "cliprange_value":
        return {"value_loss.clip": run.real(name, 0.5)}
    if last == "critic_warmup":
        return {"critic.only_steps": run.number(name, 0)}
    return OPTIMIZER[last](run, name)


def lora(run: Run, name: str) -> Outcome | Settings:
    if not run.lora_rank:
        return implied("without a rank all weights are trained")
    at = f"{MODEL}.lora" if run.has(f"{MODEL}.lora.rank") else MODEL
    if at != name.rpartition(".")[0] and not name.startswith(f"{MODEL}.lora_") and at != MODEL:
        return implied(f"{at} says it")
    match name.rpartition(".")[2]:
        case "lora_rank" | "rank":
            return {"lora.rank": run.lora_rank}
        case "lora_alpha" | "alpha":
            return {"lora.alpha": run.real(name, 16)}
        case "dropout":
            return {"lora.dropout": run.real(name, 0)}
        case "lora_adapter_path" | "adapter_path":
            return {"lora.from": run.text(name)}
    targets = list(run.flags[name])
    if targets == ["all-linear"] or set(targets) == MEGATRON_LAYERS:
        return {"lora.targets": ["all-linear"]}
    if set(targets) & MEGATRON_LAYERS:
        return impossible("--lora.targets are names of transformers' modules, such as q_proj")
    return {"lora.targets": targets}


def recompute(run: Run, name: str) -> Outcome | Settings:
    if run.trainer == "fsdp":
        return {"trainer.recompute": run.is_on(name, True)}
    if run.is_megatron:
        return implied("megatron's override_transformer_config says it")
    return implied("on a GPU") if run.is_on(name, True) else {"megatron.recompute_granularity": "none"}


def megatron_size(run: Run, name: str) -> Outcome | Settings:
    if not run.is_megatron:
        return implied("megatron does not train this run")
    size = run.number(name, 1)
    if size == 1 and "expert_tensor" not in name:  # whose default is the tensor-parallel size
        return implied("1 is the default")
    return {f"megatron.{name.rpartition('.')[2]}": size}


def sequence(run: Run, name: str) -> Outcome | Settings:
    if not run.is_megatron or run.number(f"{MEGATRON}.tensor_model_parallel_size", 1) == 1:
        return implied("without tensor parallelism there is nothing to divide")
    return {"megatron.sequence_parallel": run.is_on(name, True)}


def ulysses(run: Run, name: str) -> Outcome | Settings:
    if run.is_megatron or run.context == 1:
        return implied("no sample is divided so")
    return {"trainer": "megatron", "megatron.context_parallel_size": run.context}


def replay(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on(f"{ROLLOUT}.enable_rollout_routing_replay") and run.text(name) != "R3":
        return implied("the trainer's own routing is the same in each forward of a step")
    if run.trainer != "megatron":
        return impossible("only --trainer megatron has it")
    return {"replay_routing": True}


def mtp(run: Run, name: str) -> Outcome | Settings:
    if not run.is_on(f"{MODEL}.mtp.enable_train") or not run.is_megatron:
        return implied("the layer for multi-token prediction is not trained")
    factor = run.real(f"{MODEL}.mtp.mtp_loss_scaling_factor", 0.1)
    return {"megatron.mtp_num_layers": 1, "megatron.mtp_loss_scaling_factor": factor}


def sglang(run: Run, name: str) -> Outcome | Settings:
    if ".engine_kwargs.sglang." not in name:
        return idle("of another engine than SGLang")
    return {f"sglang.{name.rpartition('.')[2]}": literal(run.text(name))}


def bucket(run: Run, name: str) -> Settings:
    return {"engine.bucket_mb": min(max(1, run.number(name, 2048)), MOST_BUCKET_MB)}


def top_k(run: Run, name: str) -> Settings:
    return {"top_k": max(0, run.number(name, -1))}
