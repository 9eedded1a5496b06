"""GPUs, the model, and how both are divided.

Each public function is what `flags.toml` names by `by`: of a run and the name of one of its flags, without
dashes, it gives the settings that stand for the flag, or says why there are none.
"""

from pathlib import Path

from rlcore import ModelError, ModelFamily, claimant, fp8_block, read_config
from rlcore_import.run import Settings
from rlcore_import.slime.run import Run
from rlcore_import.slime.server_groups import SGLANG_CONFIG, engine_groups
from rlcore_import.translation import Outcome, idle, implied, impossible, single

BRIDGED = tuple(
    f"slime_plugins.models.{name}" for name in ("glm4", "glm5.glm5", "minimax_m2", "qwen3_next", "qwen3_5")
)
"""Layers of slime's own whose family has a bridge here."""
MEBIBYTE = 2**20
MOST_BUCKET_MB = 1024
SLIME_MTP_FACTOR = 0.2
"""slime's default; megatron-core's is 0.1."""


def critic_ranks(run: Run, _: str) -> Outcome | Settings:
    if run.estimator != "ppo":
        return implied("only --advantage-estimator ppo has a critic")
    nodes = run.number("critic-num-nodes", run.number("actor-num-nodes", 1))
    each = run.number("critic-num-gpus-per-node", run.number("actor-num-gpus-per-node", 8))
    return {"critic.ranks": nodes * each}


def engines(run: Run, _: str) -> Outcome | Settings:
    if run.trains_on_given:
        return implied("no engine is started")
    has_file = run.has(SGLANG_CONFIG) and not isinstance(engine_groups(run), Outcome)
    grouped = {"engines": None} if has_file or run.has("prefill-num-servers") else {}
    return {**run.engines, **grouped}


def eval_engines(run: Run, name: str) -> Outcome | Settings:
    gpus, each = run.number(name, 0), run.number("rollout-num-gpus-per-engine", 1)
    if each < 1 or gpus % each:
        return impossible(f"found {gpus}, expected a multiple of the {each} GPUs that every engine has")
    return {"eval_engines": gpus // each}


def components(run: Run, name: str) -> Outcome:
    if "train" in run.flags[name]:
        return impossible("a train worker that dies ends the run; --resume goes on with it")
    return implied("engines are watched, and a dead one is replaced")


def sleep(run: Run, name: str) -> Outcome | Settings:
    if not run.has("colocate"):
        return implied("engines have devices of their own")
    return {"sleep": "none" if name.startswith("no-") else "all"}


def model(run: Run, name: str) -> Outcome | Settings:
    path = run.text(name)
    if Path(path, "config.json").is_file():
        config = read_config(path, path)
        try:
            family = claimant(config, run.registry, path).record
        except ModelError as error:
            return impossible(f"no model family here: {error}".removesuffix("."))
        if isinstance(family, ModelFamily) and "*" in family.architectures:
            return impossible(
                f"{config['architectures'][0]} has no bridge; --trainer {family.trainer} trains it, without "
                "megatron's settings"
            )
        quantization = config.get("quantization_config")
        if quantization and fp8_block(quantization) is None:
            return impossible("its weights are quantized, and not in FP8 blocks; name full ones as --model")
    return {"model": path.rstrip("/")}


def spec(run: Run, name: str) -> Outcome:
    module = run.text(name)
    if module in BRIDGED:
        return implied("the family's model bridge gives the layers")
    return impossible(
        f"no model family here has the layers of {module}; write a model bridge (docs/models.md)"
    )


def balancing(run: Run, name: str) -> Outcome | Settings:
    coefficient = run.real("moe-aux-loss-coeff", 0)
    if coefficient == 0 or run.text("moe-router-load-balancing-type") == "none":
        return implied("no balancing loss: rlcore's default")
    return {f"megatron.{name.replace('-', '_')}": single(run.flags[name])}


def mtp(run: Run, _: str) -> Outcome | Settings:
    if not run.has("enable-mtp-training"):
        return idle(
            "the layer for multi-token prediction is not trained, so an engine drafts with that of the model"
        )
    layers = run.number("mtp-num-layers", 1)
    if layers != 1:
        return impossible(f"the trainer has one layer for multi-token prediction, not {layers}")
    factor = run.real("mtp-loss-scaling-factor", SLIME_MTP_FACTOR)
    return {"megatron.mtp_num_layers": 1, "megatron.mtp_loss_scaling_factor": factor}


def megatron_size(run: Run, name: str) -> Outcome | Settings:
    size = run.number(name, 1)
    return {f"megatron.{name.replace('-', '_')}": size} if size > 1 else implied("1 is the default")


def sequence(run: Run, _: str) -> Outcome | Settings:
    if run.number("tensor-model-parallel-size", 1) == 1:
        return implied("without tensor parallelism there is nothing to divide")
    return {"megatron.sequence_parallel": True}


def virtual(run: Run, name: str) -> Outcome | Settings:
    if name == "num-virtual-stages-per-pipeline-rank":
        return {"megatron.virtual_pipeline_model_parallel_size": run.number(name, 1)}
    layers, stages = run.number("num-layers", 0), run.number("pipeline-model-parallel-size", 1)
    each = run.number(name, 1) * stages
    if not layers or layers % each:
        return impossible("--num-layers does not say how many there are; give the number of virtual stages")
    return {"megatron.virtual_pipeline_model_parallel_size": layers // each}


def sglang(run: Run, name: str) -> Outcome | Settings:
    if run.trains_on_given:
        return idle("no engine is started")
    return {name.replace("sglang-", "sglang.", 1).replace("-", "_"): single(run.flags[name])}


def sglang_config(run: Run, _: str) -> Outcome | Settings:
    return engine_groups(run)


def prefill(run: Run, name: str) -> Outcome | Settings:
    first, all_engines = run.number(name, 1), run.engines["engines"]
    if not 0 < first < all_engines:
        return impossible(f"{first} of {all_engines} engines leave none for the other half")
    return {
        "engines": None,
        "engine_group": [f"prefill={first}", f"decode={all_engines - first}"],
        "engine_group.prefill.disaggregation_mode": "prefill",
        "engine_group.decode.disaggregation_mode": "decode",
        "router": "cache_aware",
    }


def external(run: Run, name: str) -> Settings:
    return {"engine_url": [url if "://" in url else f"http://{url}" for url in run.flags[name]]}


def bucket(run: Run, name: str) -> Settings:
    megabytes = run.number(name, 0) // MEBIBYTE
    return {"engine.bucket_mb": min(max(1, megabytes), MOST_BUCKET_MB)}
