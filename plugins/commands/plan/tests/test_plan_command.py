"""`rlcore plan`: what fits, why others do not, and what is refused."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from program import Program
from refusals import Case, cases

import rlcore
from rlcore import families, published_sizes
from rlcore.plugins.loader import load
from rlcore_cli.main import run
from rlcore_toolkit import count_text, read_config, size_text

GPUS = ["--gpus", "8", "--gpu-memory", "80"]
Planned = Callable[..., dict[str, Any]]


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str]) -> Planned:
    """`planned(*arguments)`: the JSON of the plan."""

    def plan(*args: str) -> dict[str, Any]:
        code = run(["plan", *args, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (code == 0) == any(layout["fits"] for layout in found["layouts"])
        return found

    return plan


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The hub's cache, which is empty: a published size is known without its config.json."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_the_best_is_the_least_divided_that_fits(planned: Planned) -> None:
    found = planned("--model", "qwen2.5-7b", *GPUS)
    assert found["parameters"] == found["active_parameters"] == 7_615_616_512
    assert found["publication_bytes"] == 2 * found["parameters"]
    assert found["cache_bytes_per_token"] == 28 * 2 * 4 * 128 * 2
    best = found["layouts"][0]
    assert best["fits"]
    assert best["memory"]["total"] <= found["usable_bytes"]
    kept = [one["layout"] for one in found["layouts"] if one["fits"] and not one["layout"]["recompute"]]
    assert best["layout"] == kept[0]
    assert 2 == kept[0]["tensor"] == min(layout["tensor"] * layout["pipeline"] for layout in kept)
    for one in found["layouts"]:
        assert one["fits"] == (one["reason"] is None)
        if not one["fits"] and one["memory"]:
            assert one["memory"]["total"] > found["usable_bytes"]
            assert "needs" in one["reason"]


def test_every_stage_starts_on_a_layer_with_an_indexer(planned: Planned) -> None:
    found = planned("--model", "glm-5.2", "--gpus", "256", "--gpu-memory", "141", "--pp", "8")
    stages = found["layouts"][0]["layout"]["stages"]
    every = read_config("glm-5.2", load().registry)["index_topk_freq"]
    assert all(sum(stages[:number]) % every == 2 for number in range(1, 8))
    first, *middle, last = stages
    assert len(set(middle)) == 1
    for place, count in (("first", first), ("last", last)):
        assert f"--megatron.num-layers-in-{place}-pipeline-stage {count} " in found["command"]


@pytest.mark.parametrize("preset", ["qwen3", "llama", "glm", "deepseek"])
def test_a_preset_is_a_model(preset: str, planned: Planned) -> None:
    found = planned("--model", preset, "--gpus", "2", "--gpu-memory", "80")
    assert 10_000 < found["parameters"] < 1_000_000
    assert found["layouts"][0]["fits"]


def test_an_unknown_model_is_answered_with_presets_too(program: Program) -> None:
    err = program.refused("plan", "--model", "lama", *GPUS)
    registry = load().registry
    presets = [family.name for family in families(registry) if family.preset]
    assert f"a hub id or one of {', '.join([*presets, *published_sizes(registry)])}." in err
    assert err.endswith("Did you mean 'llama'?")


def test_given_sizes_are_kept(planned: Planned) -> None:
    sizes = ["--gpus", "64", "--gpu-memory", "80", "--ep", "8", "--tp", "2"]
    found = planned("--model", "qwen3-30b-a3b", *sizes)
    assert found["layouts"]
    for one in found["layouts"]:
        assert (one["layout"]["expert"], one["layout"]["tensor"]) == (8, 2)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (500, "500"),
        (999, "999"),
        (1000, "1.00 thousand"),
        (99_960, "100 thousand"),
        (999_499, "999 thousand"),
        (999_999, "1.00 million"),
        (10**8, "100 million"),
        (999_499_999, "999 million"),
        (999_999_999, "1.00 B"),
        (7_620_000_000, "7.62 B"),
        (1_026_000_000_000, "1026 B"),
    ],
)
def test_a_count_has_three_digits_and_the_unit_that_fits(count: int, text: str) -> None:
    assert count_text(count) == text


def test_a_size_has_the_unit_that_fits() -> None:
    sizes = (0, 500, 999_999, 196_000, 999_999_999, 15.2e9)
    assert [size_text(size) for size in sizes] == [
        "0 GB",
        "500 bytes",
        "1.00 MB",
        "196 kB",
        "1.00 GB",
        "15.2 GB",
    ]


def test_the_table_names_layouts_flags_and_reasons(program: Program) -> None:
    out = program("plan", "--model", "llama-3-8b", *GPUS)
    for part in ("8.03 B parameters", "layouts fit into the usable 72.0 of 80 GB", "TP 2, DP 4", "--ranks 8"):
        assert part in out
    out = program("plan", "--model", "qwen3-8b", *GPUS, "--tokens-per-rank", "16384")
    assert "†" not in out  # no layout in the table has it
    out = program("plan", "--model", "llama-3-70b", "--gpus", "4", "--gpu-memory", "80", code=1)
    for part in (
        "No layout fits into the usable 72.0 of 80 GB",
        "why not",
        "needs 110.6 GB of 72.0 GB, 70.6 GB of it",
    ):
        assert part in out
    [nearest] = [line for line in out.splitlines() if "Nearest" in line]
    assert nearest == "Nearest that fits: TP 8, DP 1 * † § on 8 GPUs, 1 engine of 8 GPUs."
    assert "A smaller model that fits: qwen3.5-35b-a3b." in out
    assert "† with the optimizer's states in host memory" in out
    assert (
        "an adapter (--trainer fsdp --lora.rank 32) and smaller micro-batches (--tokens-per-rank 4096)" in out
    )
    out = program("plan", "--model", "qwen3", "--gpus", "1", "--gpu-memory", "80", "--explain")
    for part in (
        "stage 1 of 1:",
        "90.1 thousand parameters",
        "carries 180 kB",
        "total MB",
        "weights 181 kB: 90.1 thousand",
    ):
        assert part in out


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--tokens-per-rank", "2200", "--tp", "1"], "smaller micro-batches (--tokens-per-rank 1280)."),
        (["--algo", "dpo", "--tokens-per-rank", "4096", "--tp", "1"], "(--tokens-per-rank 2560)."),
    ],
)
def test_what_needs_less_memory_is_what_a_run_accepts(args: list[str], hint: str, program: Program) -> None:
    out = program("plan", "--model", "qwen2.5-7b", "--gpus", "1", "--gpu-memory", "8", *args, code=1)
    [line] = [line for line in out.splitlines() if "Less memory" in line]
    assert line.endswith(hint)
    assert "fsdp" not in line, "which takes no --tp"


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["qwen2.5-7b", "--gpus", "1", "--gpu-memory", "40", "--tp", "1"], (2, 1, 2)),
        (["qwen2.5-7b", "--gpus", "3", "--gpu-memory", "16"], (4, 4, 1)),
        (["llama-3-70b", "--gpus", "8", "--gpu-memory", "40", "--pp", "3"], (24, 8, 3)),
        (["qwen2.5-7b", "--gpus", "1", "--gpu-memory", "1"], None),
    ],
)
def test_more_gpus_are_tried_where_nothing_fits(
    args: list[str], found: tuple[int, int, int] | None, planned: Planned, program: Program
) -> None:
    """`found`: GPUs, TP and PP. The sizes that are asked for stay."""
    more = planned("--model", *args)["nearest"]
    sizes = ("world", "tensor", "pipeline")
    assert (more and tuple(more["layout"][size] for size in sizes)) == found
    out = program("plan", "--model", *args, code=1)
    assert ("Nor does one on up to 4096 GPUs." in out) == (found is None)


@cases("plan")
def test_what_cannot_be_is_one_sentence(program: Program, case: Case) -> None:
    case.check(program.refused("plan", *case.given))


def test_a_config_that_is_none_is_refused(tmp_path: Any, program: Program) -> None:
    file = tmp_path / "config.json"
    for text, reason in (
        ("{", "config.json is broken JSON"),
        (
            '{"architectures": ["BertForMaskedLM"]}',
            "its architecture has no bridge, unlike deepseek_v3",
        ),
        ('{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 8, "num_attention_heads": 2}', "is missing"),
    ):
        file.write_text(text)
        assert reason in program.refused("plan", "--model", str(tmp_path), *GPUS)


def test_a_hub_id_is_read_by_its_config(no_hub: Path, planned: Planned, program: Program) -> None:
    """Of the hub's cache, as it lies on the disk; without a network nothing else is there."""
    cached = no_hub / "models--acme--some" / "snapshots" / "0"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(read_config("qwen3-0.6b", load().registry)))
    (no_hub / "models--acme--some" / "refs").mkdir()
    (no_hub / "models--acme--some" / "refs" / "main").write_text("0")
    found, preset = (planned("--model", name, *GPUS) for name in ("acme/some", "qwen3-0.6b"))
    assert found["layouts"] == preset["layouts"]
    said = program.refused("plan", "--model", "acme/other", *GPUS)
    assert "'acme/other' is no directory here and could not be had from the hub" in said


FAMILY = """
from rlcore_toolkit import decoder_facts
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import ModelFamily

@hookimpl
def rlcore_models():
    known = {"facts": f"{__name__}:facts"} if FACTS else {}
    yield ModelFamily(
        name="own", factory=f"{__name__}:Bridge", summary="x", trainer="megatron",
        architectures=("OwnForCausalLM",), **known
    )

def facts(config):
    return decoder_facts(config, qk_norm=True)
"""
OWN = {"architectures": ["OwnForCausalLM"], "vocab_size": 10, "hidden_size": 8, "intermediate_size": 16}
OWN |= {"num_hidden_layers": 1, "num_attention_heads": 2}


def test_a_family_of_ones_own_is_planned_by_its_facts(tmp_path: Any, program: Program) -> None:
    file, config = tmp_path / "own.py", tmp_path / "config.json"
    config.write_text(json.dumps(OWN))
    asked = ["--plugin", str(file), "plan", "--model", str(config), *GPUS]
    file.write_text(f"FACTS = True\n{FAMILY}")
    norms, attention, mlp, embeddings = 3 * 8 + 2 * 4, 4 * 8 * 8, 3 * 8 * 16, 2 * 10 * 8
    assert program.json(*asked, "--json")["parameters"] == norms + attention + mlp + embeddings
    file.write_text(f"FACTS = False\n{FAMILY}")
    assert "cannot plan for 'own', expected one of" in program.refused(*asked)


TRAINER = """
from rlcore import Component, TrainerConfig, hookimpl, published_sizes

@hookimpl
def rlcore_trainers():
    yield Component(name="bare", factory=f"{__name__}:Bare", summary="x", config=TrainerConfig)
"""


@pytest.mark.parametrize("of_a_file", [False, True])
def test_a_trainer_without_a_planner_has_no_plan(of_a_file: bool, tmp_path: Path, program: Program) -> None:
    plugin, file = tmp_path / "bare.py", tmp_path / "run.toml"
    plugin.write_text(TRAINER)
    file.write_text('model = "qwen3"\ntrainer = "bare"\n')
    of_search = ["--model", "qwen3", "--trainer", "bare", "--gpus", "8"]
    given = ["--config", str(file)] if of_a_file else of_search
    out = program("--plugin", str(plugin), "plan", *given, "--gpu-memory", "80", code=2)
    err = program.err
    assert not out
    assert "--trainer: 'bare' has no planner" in err


@pytest.mark.parametrize("of_a_file", [False, True])
def test_no_heavy_library_is_imported(of_a_file: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "qwen3-0.6b"\nengine = "sglang"\n')
    asked = ["--config", str(file), "--gpu-memory", "80"] if of_a_file else ["--model", "qwen3-8b", *GPUS]
    code = (
        "import sys; from rlcore_cli.main import run; "
        f"code = run(['plan', *{asked}]); "
        "heavy = {'torch', 'ray', 'megatron', 'transformers', 'sglang'} & set(sys.modules); "
        "sys.exit(code or (3 if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_python_gets_the_same_answer_also_where_nothing_fits(planned: Planned) -> None:
    asked = planned("--model", "qwen2.5-7b", "--gpus", "1", "--gpu-memory", "4")
    assert not any(layout["fits"] for layout in asked["layouts"])
    assert rlcore.plan(model="qwen2.5-7b", gpus=1, gpu_memory=4) == asked


SIZES = published_sizes(load().registry)
MACHINES = list(itertools.product((1, 8, 16, 64, 256), (24, 40, 80, 141)))
"""GPUs, and GB of each."""


def _check_printed(size: str, gpus: int, memory: int, file: Path, planned: Planned, program: Program) -> str:
    """The command that the planner prints, which passes its dry run and its own plan; none: nothing fits."""
    machines = ["--gpus", str(gpus), "--gpu-memory", str(memory)]
    found = planned("--model", size, *machines)
    if not found["command"]:
        assert found["nearest"] is None or found["nearest"]["layout"]["world"] > gpus
        return ""
    file.write_text(program(*found["command"].split()[1:], "--dry-run"))
    assert "it fits" in program("plan", "--config", str(file), *machines)
    return str(found["command"])


@pytest.mark.usefixtures("no_hub")
def test_engines_in_stages_where_heads_divide_no_further(
    tmp_path: Path, planned: Planned, program: Program
) -> None:
    """The 48 heads of MiniMax-M2 allow a TP of 16 at most, and a sixteenth of it is too much for 40 GB."""
    command = _check_printed("minimax-m2", 256, 40, tmp_path / "run.toml", planned, program)
    assert "--sglang.tp-size 16 --sglang.pp-size 8" in command


@pytest.mark.full
@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("number", range(len(SIZES)), ids=list(SIZES))
def test_the_printed_command_passes_its_dry_run_and_its_own_plan(
    number: int, tmp_path: Path, planned: Planned, program: Program
) -> None:
    """Each published size on three kinds of machines, all twenty of them in turn."""
    size, file = list(SIZES)[number], tmp_path / "run.toml"
    chosen = [MACHINES[(3 * number + place) % len(MACHINES)] for place in range(3)]
    printed = {at: bool(_check_printed(size, *at, file, planned, program)) for at in chosen}
    for (gpus, memory), fits in printed.items():  # so does it on more of a GPU
        assert not fits or all(printed[at] for at in chosen if at[0] == gpus and at[1] > memory)


def test_the_data_of_a_run_need_not_be_here(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'algo = "grpo"\nmodel = "qwen3"\ndata = ["a=gone.jsonl:2", "b=gone.csv"]\nreward = "math"\n'
    )
    program("plan", "--config", str(file), "--gpu-memory", "80")


def test_a_plan_is_of_samples_that_fit_a_micro_batch(program: Program) -> None:
    asked = ("plan", "--model", "qwen3-0.6b", *GPUS, "--max-response-tokens")
    assert " --max-response-tokens 6000 --tokens-per-rank 8192 " in program(*asked, "6000")
    refused = program.refused(*asked, "20000")
    assert "--tokens-per-rank: found 8192, expected at least 21024" in refused
