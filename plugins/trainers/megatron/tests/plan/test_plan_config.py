"""`rlcore plan --config`: the layout of a run's TOML, its engines, and what each phase of a step needs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from program import Program
from refusals import Case, cases

from rlcore import ModelFacts
from rlcore.plugins.loader import load
from rlcore_megatron.plan.activations import gathered, saved
from rlcore_megatron.plan.candidate import Candidate
from rlcore_megatron.plan.engines import Engines, sequence_cache, weights
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_megatron.plan.memory import Beside, Optimizer, Workload, fullest, of_stages, states
from rlcore_megatron.plan.phases import Run, needs
from rlcore_megatron.plan.scoring import scoring
from rlcore_megatron.plan.weights import parameters
from rlcore_toolkit import GB, Machines, read_facts

REGISTRY = load().registry
DENSE, LATENT = read_facts("qwen3-32b", REGISTRY), read_facts("deepseek-v3", REGISTRY)
COLOCATED = """
algo = "grpo"
model = "qwen3-32b"
ranks = 8
tokens_per_rank = 16384
max_prompt_tokens = 1024
max_response_tokens = 8192
prompts_per_step = 32
group_size = 8
engines = 1
engine.name = "sglang"
sglang.tp_size = 8
sglang.mem_fraction_static = 0.7
megatron.tensor_model_parallel_size = 8
megatron.sequence_parallel = true
megatron.optimizer_cpu_offload = true
"""


def test_a_file_says_layout_engines_and_workload(judged: Any) -> None:
    found = judged(COLOCATED + 'sleep = "all"\n')
    assert found["fits"], found["reason"]
    assert (found["layout"]["tensor"], found["layout"]["world"], found["layout"]["sequence"]) == (8, 8, True)
    assert found["layout"]["recompute"], "a GPU's default"
    train, publish, generate = found["phases"]
    assert train["items"]["optimizer"] == 0
    layout = Layout(world=8, tensor=8, sequence=True, recompute=Recompute())
    planned = states(DENSE, layout, "bf16", 0, Optimizer(on_host=1.0))
    assert (train["items"]["weights"], train["items"]["gradients"]) == (planned.weights, planned.gradients)
    served = weights(DENSE, Engines(count=1, sequences=1, tokens=1, tensor=8), "bf16")
    assert publish["items"]["engine's weights"] == generate["items"]["engine's weights"] == served
    assert set(generate["items"]) == {"engine's weights", "KV cache"}, "the trainer sleeps"
    assert generate["limit"] == pytest.approx(0.7 * 80e9, rel=1e-6)
    assert "of 256 sequences of 9216 tokens" in generate["note"]
    host = planned.hosted + planned.copies + planned.weights
    assert found["host_bytes_per_node"] == 8 * host


def test_what_does_not_fit_has_a_reason_and_a_nearest_layout(judged: Any) -> None:
    found = judged(COLOCATED.replace("optimizer_cpu_offload = true", "optimizer_cpu_offload = false"))
    assert found["reason"].startswith("needs ")
    near = found["nearest"]
    assert near["fits"]
    assert near["layout"] == {**found["layout"], "stages": []}
    assert near["optimizer_on_host"] == 1.0
    assert judged(COLOCATED, "--host-memory", "64")["reason"].endswith("GB of host memory of 64 GB")


@pytest.mark.parametrize(
    ("changed", "phase", "most"),
    [
        ("ranks = 2\nsglang.tp_size = 2\nmegatron.tensor_model_parallel_size = 2", "train", "gradients"),
        (
            'sglang.tp_size = 1\nengines = 8\nsglang.mem_fraction_static = 0.9\nsleep = "all"',
            "publish",
            "engine's weights",
        ),
        (
            'model = "qwen3-0.6b"\nmax_response_tokens = 32768\ntokens_per_rank = 40960\n'
            "sglang.mem_fraction_static = 0.005",
            "generate",
            "KV cache",
        ),
    ],
)
def test_the_phase_that_limits_is_named(judged: Any, changed: str, phase: str, most: str) -> None:
    names = {line.partition(" =")[0] for line in changed.splitlines()}
    kept = [line for line in COLOCATED.splitlines() if line.partition(" =")[0] not in names]
    reason = judged("\n".join([*kept, changed, ""]))["reason"]
    assert reason.endswith(f"for {most}")
    assert ("to " + phase in reason) == (phase != "train")


def test_engines_take_the_gpus_of_all_workers_where_nothing_is_said(judged: Any) -> None:
    run = 'model = "qwen3-8b"\nranks = 8\nmegatron.tensor_model_parallel_size = 2\n'
    assert judged(run)["engines"] == [{"group": "", "count": 8, "gpus": 1}]
    assert judged(f"{run}sglang.tp_size = 4\n")["engines"] == [{"group": "", "count": 2, "gpus": 4}]


def test_uneven_and_virtual_stages_are_read(judged: Any) -> None:
    toml = 'model = "qwen3-8b"\nranks = 8\nmegatron.pipeline_model_parallel_size = 4\n'
    toml += "megatron.num_layers_in_last_pipeline_stage = 6\n"
    assert judged(toml)["layout"]["stages"] == [10, 10, 10, 6]
    last, virtual = "num_layers_in_last_pipeline_stage = 6", "virtual_pipeline_model_parallel_size = 3"
    assert judged(toml.replace(last, virtual))["layout"]["virtual"] == 3


def test_what_waits_of_layers_that_are_computed_again() -> None:
    """On the first of two stages, which has no head."""
    plain = Layout(world=2, pipeline=2)
    batch = Workload().batch(plain)
    size = batch.tokens * DENSE.hidden * batch.bytes
    none = saved(DENSE, plain, batch, 0)

    def redone(count: int, *, block: bool) -> int:
        layout = replace(plain, recompute=Recompute(layers=count, block=block))
        return saved(DENSE, layout, batch, 0)

    one, two = redone(1, block=False), redone(2, block=False)
    layer = 16 * size - (one - two)
    assert layer > 10 * size
    assert redone(32, block=True) == one
    assert redone(2, block=True) == none - 2 * layer + 2 * size
    assert redone(31, block=True) == none - 31 * layer + 31 * size
    open_ = replace(plain, recompute=Recompute())
    assert saved(DENSE, open_, batch, 0, waiting=2) == 2 * one - layer, "one micro-batch is computed again"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Recompute()),
        ({"granularity": "full", "method": "block", "num_layers": 3}, Recompute(layers=3, block=True)),
        ({"granularity": "selective"}, Recompute(modules=("core_attn",))),
        (
            {"granularity": "selective", "modules": ["mlp", "core_attn"]},
            Recompute(modules=("core_attn", "mlp")),
        ),
        ({"modules": ["mlp"]}, None),
    ],
)
def test_what_is_computed_again_is_read(
    judged: Any, fields: dict[str, Any], expected: Recompute | None
) -> None:
    lines = [f"megatron.recompute_{name} = {json.dumps(value)}\n" for name, value in fields.items()]
    layout = judged(COLOCATED + "".join(lines))["layout"]
    assert layout["recompute"] == (expected and json.loads(json.dumps(asdict(expected))))


def _printed(layout: Layout) -> Candidate:
    machines, run = Machines(gpus=8, memory=80 * GB), Run(work=Workload())
    return Candidate(facts=DENSE, machines=machines, layout=layout, run=run, needs=None, reason="")


def test_flags_replace_what_a_run_file_computes_again() -> None:
    layout = Layout(world=8, recompute=Recompute())
    found = _printed(layout)
    assert found.flags() == found.flags(found) == "--ranks 8"
    for of_file in (replace(layout, recompute=Recompute(block=True)), replace(layout, recompute=None)):
        told = "--megatron.recompute-method uniform --megatron.recompute-num-layers 1"
        assert told in found.flags(_printed(of_file))


def test_critic_and_reference_are_counted(judged: Any) -> None:
    plain, ppo = judged(COLOCATED), judged(COLOCATED.replace('"grpo"', '"ppo"') + "kl_coef = 0.1\n")
    weights = plain["memory"]["weights"]
    assert (plain["memory"]["roles"], plain["memory"]["role_states"]) == (0, 0)
    assert ppo["memory"]["roles"] == pytest.approx(2 * weights, rel=0.05), "critic and reference"
    assert ppo["memory"]["role_states"] == pytest.approx(2 * weights, rel=0.05), (
        "gradients; AdamW on the host"
    )
    swapped = judged(COLOCATED + 'kl_coef = 0.1\nreference.placement = "swapped"\n')
    assert swapped["memory"]["roles"] == 0
    assert swapped["host_bytes_per_node"] > plain["host_bytes_per_node"]


def test_a_model_beside_the_policy_may_fill_another_stage() -> None:
    """Its own pipeline is looked at, and its own work."""
    layout, work = Layout(world=8, pipeline=8), Workload(tokens=256, micro_batches=1)
    teacher = Beside(role="teacher", facts=DENSE, stages=(4, 4, 4, 36, 4, 4, 4, 4))
    assert fullest(of_stages(DENSE, layout, work, roles=(teacher,))).stage == 3
    alone, small = Layout(world=1), read_facts("qwen3-4b", REGISTRY)
    roles = (Beside(role="critic", facts=DENSE, optimizer=Optimizer()),)
    [found] = of_stages(small, alone, work, roles=roles)
    assert found.busiest == "critic"
    assert found.activations == saved(DENSE, alone, work.batch(alone), 0, values=True)


def test_a_role_beside_the_policy_may_divide_its_layers_in_its_own_way(judged: Any) -> None:
    toml = COLOCATED.replace('"grpo"', '"ppo"').replace("ranks = 8", "ranks = 16")
    toml += "megatron.pipeline_model_parallel_size = 2\n"
    own = toml + "critic.megatron.num_layers_in_last_pipeline_stage = 10\n"
    plain, uneven = judged(toml)["memory"], judged(own)["memory"]
    assert uneven["stage"] == 0, "the critic has 54 of its 64 layers there"
    assert uneven["roles"] > 1.5 * plain["roles"]


def test_a_critic_beside_the_policy_may_compute_other_things_again(judged: Any) -> None:
    toml = COLOCATED.replace('"grpo"', '"ppo"')
    both, own = judged(toml), judged(toml + 'critic.megatron.recompute_granularity = "none"\n')
    assert both["memory"]["busiest"] == "policy"
    assert own["memory"]["busiest"] == "critic"
    layout = replace(Layout(world=8, tensor=8, sequence=True), recompute=None)
    batch = Workload(tokens=16384).batch(layout)
    assert own["memory"]["activations"] == saved(DENSE, layout, batch, 0, values=True)
    assert not own["fits"]
    assert own["layout"]["recompute"], "the policy's"
    selective = toml + 'megatron.recompute_granularity = "full"\nmegatron.recompute_num_layers = 4\n'
    selective += (
        'critic.megatron.recompute_granularity = "selective"\ncritic.megatron.recompute_num_layers = "none"\n'
    )
    chosen = replace(layout, recompute=Recompute(modules=("core_attn",)))
    found = judged(selective)["memory"]
    assert (found["busiest"], found["activations"]) == ("critic", saved(DENSE, chosen, batch, 0, values=True))


def test_inputs_of_layers_may_be_divided_between_tensor_parallel_ranks(judged: Any) -> None:
    toml = COLOCATED.replace("sequence_parallel = true", 'recompute_granularity = "full"')
    whole, divided = (
        judged(toml + line)["memory"] for line in ("", "megatron.distribute_saved_activations = true")
    )
    of_layer = 16384 * DENSE.hidden * 2
    assert whole["activations"] - divided["activations"] == DENSE.layers * (of_layer - of_layer // 8)
    distributed = Layout(world=8, tensor=8, recompute=Recompute(distributed=True))
    other = replace(distributed, sequence=True, recompute=Recompute())
    flags = _printed(other).flags(_printed(distributed))
    assert "--megatron.distribute-saved-activations false" in flags


@pytest.mark.parametrize("facts", [DENSE, LATENT], ids=["dense", "latent"])
def test_context_parallel_ranks_see_more_than_their_own_tokens(facts: ModelFacts) -> None:
    """A rank has one run of the front and one of the back: of one sample it sees 1 + 1 / 2 CP in all."""
    whole, shared = Layout(world=4), Layout(world=4, context=4)
    one, many = Workload(tokens=4096), Workload(tokens=4096, longest=512)
    assert [work.batch(shared).read for work in (one, many)] == [4096 + 512, 1024 + 2 * 512]
    assert [work.batch(whole).read for work in (one, many)] == [4096, 4096]
    for way in (saved, scoring):
        more, less = (way(facts, shared, work.batch(shared), 0) for work in (one, many))
        assert more > less > way(facts, shared, replace(many.batch(shared), seen=1024), 0)
        assert more < way(facts, whole, one.batch(whole), 0)
    computed = replace(shared, recompute=Recompute())
    roles = (Beside(role="critic", facts=facts, optimizer=Optimizer(), owns_recompute=True),)
    [found] = of_stages(facts, computed, one, roles=roles)
    assert (found.busiest, found.workspace) == ("critic", gathered(facts, shared, one.batch(shared)))
    assert gathered(facts, whole, one.batch(whole)) == 0


def test_a_loss_may_ask_for_a_reference(judged: Any) -> None:
    dpo = COLOCATED.replace('"grpo"', '"dpo"').replace("= 16384", "= 18432")
    found, apart = judged(dpo)["memory"], judged(dpo + "reference.ranks = 8\n")["memory"]
    assert found["roles"] == pytest.approx(found["weights"], rel=0.01), "but for padding"
    assert apart["roles"] == 0


@pytest.mark.parametrize(("sleep", "items"), [("none", 4), ("optimizer", 2), ("all", 0)])
def test_what_sleeps_is_gone_while_engines_generate(sleep: str, items: int) -> None:
    machines = Machines(gpus=8, memory=80 * GB)
    engines = Engines(count=1, sequences=8, tokens=4096, tensor=8)
    job = Run(
        work=Workload(), roles=(Beside(role="reference", facts=DENSE),), engines=(engines,), sleep=sleep
    )
    layout = Layout(world=8, tensor=8, sequence=True, recompute=Recompute())
    found = needs(DENSE, layout, job, machines)
    held = {name for name, size in found.phases[-1].items.items() if size}
    assert (
        held - {"engine's weights", "KV cache"}
        == {
            0: set(),
            2: {"weights", "other models"},
            4: {"weights", "gradients", "optimizer", "other models"},
        }[items]
    )
    memory = fullest(of_stages(DENSE, layout, job.work, job.optimizer, job.roles))
    slept = {"none": 0, "optimizer": memory.optimizer, "all": memory.states - memory.gradients}[sleep]
    assert found.host == 8 * slept


def test_each_phase_is_of_the_stage_that_is_fullest_in_it() -> None:
    """The first one has more micro-batches open, the second one more layers."""
    layout = Layout(world=2, pipeline=2, stages=(30, 34))
    engines = Engines(count=1, sequences=1, tokens=1024, tensor=2)
    found = needs(DENSE, layout, Run(work=Workload(), engines=(engines,)), Machines(gpus=2, memory=80 * GB))
    train, *others = found.phases
    assert train.items["weights"] == states(DENSE, layout, "bf16", 0).weights
    for phase in others:
        assert phase.items["weights"] == states(DENSE, layout, "bf16", 1).weights > train.items["weights"]


def test_a_stage_between_may_be_the_fullest() -> None:
    layout = Layout(world=6, pipeline=6, stages=(8, 8, 24, 8, 8, 8))
    assert fullest(of_stages(DENSE, layout, Workload(micro_batches=1))).stage == 2


def test_a_stage_without_layers_computes_none_again() -> None:
    layout = Layout(world=2, pipeline=2, stages=(0, 64), recompute=Recompute(modules=("core_attn",)))
    assert fullest(of_stages(DENSE, layout, Workload(micro_batches=1))).stage == 1


def test_an_engines_bytes_are_divided_as_sglang_divides_them() -> None:
    one = Engines(count=1, sequences=1, tokens=1000)
    assert weights(DENSE, one, "bf16") == 2 * parameters(DENSE)
    eight = replace(one, tensor=8)
    assert weights(DENSE, eight, "bf16") == pytest.approx(2 * parameters(DENSE) / 8, rel=2e-4), (
        "norms are whole"
    )
    assert sequence_cache(DENSE, one, "bf16") == 1000 * 64 * 2 * 8 * 128 * 2
    assert sequence_cache(DENSE, eight, "bf16") * 8 == sequence_cache(DENSE, one, "bf16")
    assert sequence_cache(DENSE, replace(one, tensor=16), "bf16") == sequence_cache(DENSE, eight, "bf16")
    assert sequence_cache(LATENT, eight, "bf16") == sequence_cache(LATENT, one, "bf16") == 1000 * 61 * 576 * 2
    assert sequence_cache(DENSE, replace(one, cache_bytes=1), "bf16") * 2 == sequence_cache(
        DENSE, one, "bf16"
    )
    grouped = weights(LATENT, replace(one, tensor=32, parts=8), "bf16")
    assert (
        weights(LATENT, replace(one, tensor=32), "bf16")
        < grouped
        < 2 * weights(LATENT, replace(one, tensor=32), "bf16")
    )


def test_an_adapter_travels_in_the_place_of_the_weights(judged: Any) -> None:
    lora = COLOCATED + 'lora.rank = 4\nlora.publish = "{}"\n'
    merged, alone = (judged(lora.format(how)) for how in ("merged", "adapter"))
    # a layer: q and o of 64 heads, k and v of 8, and an MLP of 25,600
    numbers = 64 * 4 * (2 * (5120 + 8192) + 2 * (5120 + 1024) + 3 * (5120 + 25600))
    assert alone["publication_bytes"] == 2 * numbers < merged["publication_bytes"] / 100
    sent = [plan["phases"][1]["items"]["publication"] for plan in (alone, merged)]
    assert sent[0] == 3 * alone["publication_bytes"] < sent[1]
    refused = judged(lora.format("adapter") + 'engine.publish = "delta"\n')
    assert refused["error"].startswith("--engine.publish: found delta, by which SGLang")
    two = judged(lora.format("adapter") + "policy.other.rank = 8\n")
    assert two["publication_bytes"] == 3 * alone["publication_bytes"]
    assert two["memory"]["gradients"] == pytest.approx(3 * alone["memory"]["gradients"], rel=1e-3)
    larger = judged(lora.format("adapter").replace("rank = 4", "rank = 8"))["memory"]["activations"]
    assert two["memory"]["activations"] == larger > alone["memory"]["activations"], "by turns"
    # SGLang's slots: three of rank 8, two of rank 4, beside weights that have none of them
    served = [plan["phases"][-1]["items"]["engine's weights"] for plan in (merged, alone, two)]
    assert [size - served[0] for size in served] == [0, 2 * 2 * numbers, 3 * 2 * 2 * numbers]
    unknown = judged(lora.format("adapter") + 'policy.other.targets = ["router"]\n')
    assert unknown["error"].startswith("--policy.other.targets: found 'router', of which the planner")


def test_engine_groups_count_together(judged: Any) -> None:
    grouped = COLOCATED.replace("engines = 1", 'engine_group.name = ["a=1", "b=3"]').replace(
        "tp_size = 8", "tp_size = 2"
    )
    assert "of 64 sequences" in judged(grouped)["phases"][-1]["note"]


def test_bandwidth_bounds_a_rollout_and_a_publication(judged: Any) -> None:
    found = judged(COLOCATED + 'sleep = "all"\n', "--gpu-bandwidth", "3000", "--network", "50")
    generate = found["phases"][-1]["items"]
    held = generate["KV cache"] // sequence_cache(
        DENSE, Engines(count=1, sequences=1, tokens=9216, tensor=8), "bf16"
    )
    read = generate["engine's weights"] + generate["KV cache"] // 2
    best = found["bounds"]
    assert best["tokens"] == pytest.approx(held * 3000e9 / read)
    assert best["rollout"] == pytest.approx(256 * 8192 / best["tokens"])
    assert best["publication"] == pytest.approx(2 * parameters(DENSE) / 50e9), "one host"
    drafting = judged(COLOCATED + 'sglang.speculative_algorithm = "EAGLE"\n', "--gpu-bandwidth", "3000")
    assert drafting["bounds"]["tokens"] is None, "several tokens are made at a reading"
    assert judged(COLOCATED)["bounds"] == {"rollout": None, "tokens": None, "publication": None}


@cases("plan: files")
def test_a_file_that_cannot_be_judged_is_one_sentence(tmp_path: Path, program: Program, case: Case) -> None:
    """The case names the lines that differ, and the keys that are not there."""
    lines, args = case.given
    keys = {line.partition(" = ")[0] for line in lines}
    kept = [line for line in COLOCATED.split("\n") if line.partition(" = ")[0] not in keys]
    file = tmp_path / "run.toml"
    file.write_text("\n".join([*kept, *(line for line in lines if " = " in line)]))
    case.check(program.refused("plan", "--config", str(file), "--gpu-memory", "80", *args), tmp_path)


def test_a_file_may_name_a_preset(judged: Any) -> None:
    """Its suggestions count, and the file's own settings win."""
    for model, line, tokens in (
        ("qwen3", "", 32 + 8),
        ("qwen3", "max_response_tokens = 100", 32 + 100),
        ("qwen3-8b", "", 1024 + 256),
    ):
        found = judged(f'algo = "grpo"\nmodel = "{model}"\n{line}\n')
        assert f"sequences of {tokens} tokens" in found["phases"][-1]["note"]


def test_the_numbers_are_explained(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "run.toml"
    file.write_text(COLOCATED)
    out = " ".join(program("plan", "--config", str(file), "--gpu-memory", "80", "--explain").split())
    for part in ("it fits", "Host memory of a node", "× 12 bytes, 100% of them in host memory", "KV cache:"):
        assert part in out
    assert "experts" not in out, "the model has none"
