"""What `rlcore plan --config` counts of groups of engines, of frozen models and of a critic's own ranks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program import Program

from rlcore import published_sizes
from rlcore.plugins.loader import load
from rlcore_megatron.plan.bounds import bounds
from rlcore_megatron.plan.engines import Engines, sequence_cache, weights
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_megatron.plan.memory import Optimizer, Workload, fullest, of_stages, states
from rlcore_megatron.plan.phases import Run, needs
from rlcore_megatron.plan.weights import whole
from rlcore_toolkit import GB, Machines, read_facts

REGISTRY = load().registry
DENSE, SMALL = read_facts("qwen3-32b", REGISTRY), read_facts("qwen3-8b", REGISTRY)
TOKEN = 64 * 2 * 8 * 128 * 2
"""Bytes of a token of Qwen3-32B in the cache, in bf16, on all GPUs of an engine."""
EIGHT = Layout(world=8, tensor=8, sequence=True, recompute=Recompute())
RUN = """
algo = "ppo"
model = "qwen3-32b"
ranks = 8
tokens_per_rank = 16384
max_prompt_tokens = 1024
max_response_tokens = 8192
prompts_per_step = 32
group_size = 8
engine.name = "sglang"
sglang.tp_size = 2
sleep = "all"
megatron.tensor_model_parallel_size = 8
megatron.sequence_parallel = true
megatron.optimizer_cpu_offload = true
"""
HALVES = """
router = "cache_aware"

[engine_group]
name = ["prefill=1", "decode=3"]

[engine_group.prefill]
disaggregation_mode = "prefill"

[engine_group.decode]
disaggregation_mode = "decode"
kv_cache_dtype = "fp8_e4m3"
mem_fraction_static = 0.6
"""


def _phases(found: Any) -> dict[str, Any]:
    return {phase["name"]: phase for phase in found["phases"]}


def test_each_group_has_its_own_cache_devices_and_requests(judged: Any) -> None:
    found = _phases(judged(RUN + HALVES))
    prefill, decode = found["generate (prefill)"], found["generate (decode)"]
    assert "of 256 sequences of 1024 tokens" in prefill["note"], "all prompts go to the one that prefills"
    assert "of 86 sequences of 9216 tokens" in decode["note"], "256 samples among three"
    assert prefill["items"]["KV cache"] % (1024 * TOKEN // 2) == 0
    assert decode["items"]["KV cache"] % (9216 * TOKEN // 4) == 0, "in FP8"
    assert prefill["limit"] == pytest.approx(0.4 * 80e9), "SGLang's share beside a trainer"
    assert decode["limit"] == pytest.approx(0.6 * 80e9)
    several = judged(RUN + HALVES + "tp_size = 4\n")["error"]
    assert several.endswith(
        "engines of several sizes (prefill: 2, decode: 4 GPUs), expected the same for all."
    )


def test_groups_that_take_turns_share_the_requests_by_engines(judged: Any) -> None:
    listed = 'engine_group.name = ["short=3", "long=1"]\nengine_group.long.max_running_requests = 8\n'
    found = _phases(judged(RUN + listed))
    assert "of 64 sequences" in found["generate (short)"]["note"]
    assert "of 8 sequences" in found["generate (long)"]["note"]


def test_the_slowest_group_binds_a_rollout() -> None:
    fast = Engines(count=2, sequences=8, tokens=1000, group="fast", tensor=4, total=64_000)
    slow = replace(fast, group="slow", tensor=2)
    idle = replace(fast, group="prefill", total=0)
    machines = Machines(gpus=8, memory=80 * GB, gpu_bandwidth=3000 * GB)

    def least(*engines: Engines) -> float | None:
        job = Run(work=Workload(), engines=engines, sleep="all")
        return bounds(DENSE, job, needs(DENSE, EIGHT, job, machines), machines).rollout

    assert least(fast, slow, idle) == least(slow) != least(fast)
    read = weights(DENSE, slow, "bf16") + 8 * sequence_cache(DENSE, slow, "bf16") // 2
    assert least(slow) == pytest.approx(64_000 / (2 * 8 * 3000e9 / read))


def test_quantized_weights_are_counted_by_their_bits() -> None:
    one = Engines(count=1, sequences=1, tokens=1)
    full = sum(weight.numel for weight in whole(DENSE) if weight.name in ("embedding", "output"))
    full += sum(weight.numel for weight in whole(DENSE) if weight.name.endswith("norm"))
    linear = sum(weight.numel for weight in whole(DENSE)) - full
    assert weights(DENSE, replace(one, weight_bits=8), "bf16") == 2 * full + linear
    assert weights(DENSE, replace(one, weight_bits=4), "bf16") == 2 * full + linear // 2


def test_routers_norms_and_latent_projections_are_whole_on_each_rank() -> None:
    """As SGLang 0.5.23 loads tiny models on two ranks."""
    facts = read_facts("deepseek-v3", REGISTRY)
    one = Engines(count=1, sequences=1, tokens=1)
    names = ("router", "q_down", "kv_down", "norm")
    undivided = sum(2 * weight.numel for weight in whole(facts) if weight.name.endswith(names))
    several = weights(facts, replace(one, tensor=32), "bf16")
    assert several == undivided + (weights(facts, one, "bf16") - undivided) // 32
    assert undivided > 0.04 * several


def test_a_quantization_of_the_engine_is_read(judged: Any) -> None:
    plain, eight = judged(RUN), judged(RUN + 'sglang.quantization = "fp8"\n')
    found = [one["phases"][-1]["items"]["engine's weights"] for one in (plain, eight)]
    assert found[1] == weights(
        DENSE, Engines(count=1, sequences=1, tokens=1, tensor=2, weight_bits=8), "bf16"
    )
    assert found[1] < 0.6 * found[0]


def test_engines_hold_what_the_model_is_quantized_to(judged: Any, tmp_path: Path) -> None:
    how = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    model = _model(tmp_path / "fp8", "qwen3-32b", quantization_config=how)
    asked, named = judged(RUN + 'sglang.quantization = "fp8"\n'), judged(RUN, "--model", str(model))
    assert named["phases"][-1] == asked["phases"][-1]
    sent = [one["publication_bytes"] for one in (named, asked)]
    assert sent[0] == weights(DENSE, Engines(count=1, sequences=1, tokens=1, weight_bits=8), "bf16"), (
        "SGLang quantizes what comes; a model in FP8 is quantized before"
    )
    assert sent[0] < 0.6 * sent[1]


def test_an_engine_of_another_dtype_has_weights_and_cache_of_that(judged: Any) -> None:
    plain, wide = judged(RUN), judged(RUN + 'engine.dtype = "fp32"\n')
    before, after = (one["phases"][-1]["items"]["engine's weights"] for one in (plain, wide))
    assert after == 2 * before
    one = Engines(count=1, sequences=1, tokens=1, tensor=2)
    assert sequence_cache(DENSE, replace(one, dtype="fp32"), "bf16") == 2 * sequence_cache(DENSE, one, "bf16")
    assert wide["publication_bytes"] == 2 * plain["publication_bytes"]
    same = judged(RUN + 'engine.dtype = "bf16"\n')
    assert same["phases"] == plain["phases"]


def test_the_engine_says_what_it_takes_beside_a_trainer(judged: Any) -> None:
    """By its name in the table, by itself, or unsaid: a machine with GPUs takes SGLang."""
    named = _phases(judged(RUN))
    assert named["generate"]["limit"] == pytest.approx(0.4 * 80e9)
    for way in ('engine = "sglang"\n', ""):
        assert _phases(judged(RUN.replace('engine.name = "sglang"\n', way))) == named
    apart = _phases(judged(RUN + 'placement = "split"\n'))
    assert apart["generate"]["limit"] > named["generate"]["limit"]


def test_an_engine_takes_a_gpu_unless_its_own_settings_say_no(judged: Any) -> None:
    sglang = 'engine.name = "sglang"\nsglang.tp_size = 2\n'
    local = RUN.replace(sglang, 'engine.name = "local"\n')
    assert "generate" in _phases(judged(local))
    on_cpu = RUN.replace(sglang, 'engine.name = "local"\nengine.device = "cpu"\n')
    assert [phase["name"] for phase in judged(on_cpu)["phases"]] == ["train"]
    wrong = judged(on_cpu.replace('"cpu"', '"gpu"'))["error"]
    assert "engine.device: found 'gpu', expected one of" in wrong


def test_what_no_layout_of_the_policy_mends_is_named(judged: Any, tmp_path: Path, program: Program) -> None:
    critic = "critic.ranks = 1\ncritic.megatron.tensor_model_parallel_size = 1\n"
    judge = '[frozen]\nname = ["judge=qwen3-235b-a22b"]\n'
    found = judged(RUN + critic + judge)
    assert not found["fits"]
    assert found["nearest"] is None
    assert [one.partition(" it needs ")[0] for one in found["apart"]] == [
        "to train the critic",
        "to serve judge",
    ]
    file = str(tmp_path / "run.toml")
    said = " ".join(program("plan", "--config", file, "--gpu-memory", "80", code=1).split())
    assert "No layout of the policy changes this: to train the critic it needs " in said
    assert "No layout of the policy changes this: to serve judge it needs " in said
    assert "No layout of 8 GPUs" not in said


def test_a_critic_on_ranks_of_its_own_has_a_phase(judged: Any) -> None:
    own = "critic.ranks = 4\ncritic.megatron.tensor_model_parallel_size = 4\n"
    found = judged(RUN + own)
    items = _phases(found)["train the critic"]["items"]
    layout, host = replace(EIGHT, world=4, tensor=4), Optimizer(on_host=1.0, owns_masters=True)
    critic = states(DENSE, layout, "bf16", 0, host, values=True)
    assert (items["weights"], items["gradients"]) == (critic.weights, critic.gradients)
    assert items["optimizer"] == items["work"] == 0, "on the host, and no logits"
    work = Workload(tokens=16384)
    assert items["activations"] == fullest(of_stages(DENSE, layout, work, host, values=True)).activations
    assert found["memory"]["roles"] == 0, "nothing of it is on the policy's ranks"
    alone = judged(RUN.replace('"ppo"', '"grpo"'))["host_bytes_per_node"]
    hosted = 4 * (critic.hosted + critic.copies)
    assert found["host_bytes_per_node"] == max(alone, hosted), "8 and 4 ranks are on two nodes"
    together = judged(RUN + own, "--gpus-per-node", "16")["host_bytes_per_node"]
    assert together == alone + hosted
    device = judged(RUN + own + "critic.megatron.optimizer_cpu_offload = false\n")
    items = _phases(device)["train the critic"]["items"]
    on_device = states(DENSE, layout, "bf16", 0, values=True)
    assert items["optimizer"] == on_device.optimizer
    most = f"{on_device.optimizer / GB:.1f} GB of it for optimizer"
    assert device["reason"].endswith(f"GB to train the critic, {most}")


def test_a_frozen_role_on_ranks_of_its_own_has_a_phase(judged: Any) -> None:
    own = "kl_coef = 0.1\nreference.ranks = 2\nreference.megatron.tensor_model_parallel_size = 2\n"
    found = judged(RUN + own)
    items = _phases(found)["score by the reference"]["items"]
    assert items["weights"] == states(DENSE, replace(EIGHT, world=2, tensor=2), "bf16", 0).weights
    assert items["work"] > 0
    plain = judged(RUN)
    assert found["memory"] == plain["memory"], "nothing of it is on the policy's ranks"


def test_a_critic_beside_the_policy_has_fields_of_its_own(judged: Any) -> None:
    hosted = judged(RUN)
    found = judged(RUN + "critic.megatron.optimizer_cpu_offload = false\n")
    critic = states(DENSE, EIGHT, "bf16", 0, values=True)
    assert hosted["memory"]["role_states"] == critic.gradients
    assert found["memory"]["role_states"] == critic.gradients + critic.optimizer
    assert found["host_bytes_per_node"] < hosted["host_bytes_per_node"]


@pytest.mark.parametrize(
    ("role", "more"), [("reference", "kl_coef = 0.1\n"), ("teacher", "distill_coef = 0.1\n"), ("critic", "")]
)
def test_a_role_beside_the_policy_has_the_size_of_its_own_model(judged: Any, role: str, more: str) -> None:
    """Of 36 layers, where the policy has 64."""
    algo = "ppo" if role == "critic" else "grpo"
    found = judged(RUN.replace('"ppo"', f'"{algo}"') + f'{more}{role}.model = "qwen3-8b"\n')
    small = states(SMALL, EIGHT, "bf16", 0, values=role == "critic")
    assert found["memory"]["roles"] == pytest.approx(small.weights, rel=1e-4), "but for padding"


def _model(path: Path, name: str, **changes: Any) -> Path:
    """The config of a published size, changed."""
    path.mkdir()
    config = json.loads(published_sizes(REGISTRY)[name].read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def test_frozen_models_have_gpus_and_bytes(judged: Any, tmp_path: Path) -> None:
    fp8 = _model(tmp_path / "fp8", "qwen3-8b", quantization_config={"quant_method": "fp8"})
    scorer = _model(tmp_path / "rm", "qwen3-8b", architectures=["Qwen3ForSequenceClassification"])
    other = _model(tmp_path / "other", "qwen3-8b", architectures=["Gemma2ForSequenceClassification"])
    toml = RUN + f'[frozen]\nfp8 = "{fp8}"\nrm = "{scorer}"\nother = "{other}"\n'
    found = _phases(judged(toml + 'name = ["judge=qwen3-8b"]\n[frozen.judge]\ntp_size = 2\n'))
    one = Engines(count=1, sequences=1, tokens=9216)
    for name, engines in (
        ("judge", replace(one, tensor=2)),
        ("fp8", replace(one, weight_bits=8)),
        ("rm", replace(one, is_classifier=True)),
    ):
        items = found[f"serve {name}"]["items"]
        assert items["engine's weights"] == weights(SMALL, engines, "bf16"), name
        cache = 0 if name == "rm" else sequence_cache(SMALL, engines, "bf16")
        assert items.get("KV cache", 0) == cache
    matrix = SMALL.vocabulary * SMALL.hidden - SMALL.hidden  # a score in place of the vocabulary
    served = weights(SMALL, one, "bf16")
    assert served - found["serve rm"]["items"]["engine's weights"] == 2 * matrix
    assert found["serve other"]["note"].startswith("not counted")


def test_gpus_of_frozen_models_are_asked_for(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN + 'frozen.name = ["judge=qwen3-8b"]\nfrozen.judge.tp_size = 2\n')
    said = program.refused("plan", "--config", str(file), "--gpu-memory", "80", "--gpus", "9")
    assert "for the train workers, and 2 for the frozen judge." in said


@pytest.mark.parametrize(("virtual", "batches", "waiting"), [(1, 64, 4), (1, 2, 2), (2, 64, 5.5), (2, 1, 1)])
def test_the_micro_batches_that_wait_are_those_of_the_schedule(
    virtual: int, batches: int, waiting: float, tmp_path: Path, program: Program
) -> None:
    """Of the first of 4 stages; with 2 chunks, megatron runs 2 × 3 + 4 + 1 of a chunk ahead."""
    file = tmp_path / "run.toml"
    lines = ["model = 'qwen3-8b'\nalgo = 'grpo'\nranks = 4\nmegatron.pipeline_model_parallel_size = 4"]
    lines += [f"prompts_per_step = {batches}\ngroup_size = 1\nminibatches = 1\ntokens_per_rank = 512"]
    lines += ["max_prompt_tokens = 256\nmax_response_tokens = 256\nengine_url = ['http://a:1']"]
    lines += [f"megatron.virtual_pipeline_model_parallel_size = {virtual}"] if virtual > 1 else []
    file.write_text("\n".join(lines).replace("qwen3-8b", str(_deep(tmp_path))))
    asked = ["plan", "--config", str(file), "--gpu-memory", "1000", "--explain"]
    assert program.json(*asked, "--json")["memory"]["waiting"] == waiting
    assert f"wait for their backward pass: {waiting:g} at most" in " ".join(program(*asked).split())


def _deep(folder: Path) -> Path:
    """A vocabulary so small that the first stage, with most micro-batches open, is the fullest."""
    return _model(folder / "deep", "qwen3-8b", num_hidden_layers=32, vocab_size=64)


@pytest.mark.parametrize(("placement", "gpus"), [("colocate", 8), ("split", 4)])
def test_larger_engines_are_the_nearest_where_their_weights_do_not_fit(
    judged: Any, placement: str, gpus: int
) -> None:
    run = f"""
model = "llama-3-70b"
ranks = 16
placement = "{placement}"
engines = 8
sglang.tp_size = 1
megatron.tensor_model_parallel_size = 8
megatron.sequence_parallel = true
megatron.optimizer_cpu_offload = true
"""
    found = judged(run + ('sleep = "all"\n' if placement == "colocate" else ""))
    assert not found["fits"]
    near = found["nearest"]
    assert near["layout"] == found["layout"]
    assert near["engines"] == [{"group": "", "count": 2, "gpus": gpus}]
