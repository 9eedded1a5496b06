"""Every error of the configuration is one sentence: the place, what was found, what was expected."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError, ModelError, UserError
from rlcore.api.records import Kind
from rlcore.compose.models import claimant, hub_config
from rlcore.compose.resolved import Resolved
from rlcore.compose.run_checks import checked
from rlcore.config import toml
from rlcore.plugins.loader import Plugins
from rlcore.plugins.registry import Entry, PluginInfo, Registry
from rlcore_machine.network import free_port

Make = Callable[..., Resolved]

FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"algo": "toi"}, "--algo: found 'toi', expected one of off_policy, toy. Did you mean 'toy'?"),
    ({"loss": "clop"}, "--loss: found 'clop', expected one of clip, other. Did you mean 'clip'?"),
    ({"filter": ["dorp"]}, "--filter: found 'dorp', expected one of drop, keep. Did you mean 'drop'?"),
    ({"filter": ["drop", "drop"]}, "--filter: found drop, drop, expected each filter once."),
    ({"reward": ["many", "many=2"]}, "--reward: found many, many=2, expected each reward once."),
    (
        {"reward": ["many=high"]},
        "--reward: found 'many=high', expected NAME=WEIGHT with a weight that is a number.",
    ),
    (
        {"reward.many.mode": "hard"},
        "--reward.many.mode belongs to reward 'many', which is not chosen; add --reward many.",
    ),
    ({"task": "file"}, "--task: 'file' is no task; use --data PATH."),
    ({"task": "copy", "data": "x"}, "--task and --data exclude each other; leave one out."),
    ({"data": []}, "--data: found [], expected a path, or a list of paths."),
    ({"data": "gone.jsonl"}, "--data: found 'gone.jsonl', which is no file."),
    ({"model": "./gone"}, "--model: found './gone', which is no directory."),
    (
        {"model": "tini"},
        "--model: found 'tini', expected a Hugging Face directory, a hub id (OWNER/NAME) or one of tiny. "
        "Did you mean 'tiny'?",
    ),
    ({"model": "large"}, "--model: 'large' has no preset, expected a directory or a hub id of that family."),
    ({"steps": "0"}, "--steps: found '0', expected an integer of at least 1."),
    ({"steps": "1.5"}, "--steps: found '1.5', expected an integer of at least 1."),
    ({"lr": "fast"}, "--lr: found 'fast', expected a number of at least 0 and of at most 10."),
    ({"lr": "nan"}, "--lr: found 'nan', expected a number of at least 0 and of at most 10."),
    ({"top_p": "0"}, "--top-p: found '0', expected a number above 0 and of at most 1."),
    (
        {"lr_schedule": "cosin"},
        '--lr-schedule: found \'cosin\', expected one of "constant", "linear", "cosine".',
    ),
    ({"loss.bound": "1"}, "--loss.bound: found '1', expected a number above 1, or \"none\"."),
    ({"stepz": "1"}, "--stepz is unknown. Did you mean '--steps'?"),
    ({"loss.steps": "1"}, "--loss.steps is unknown. Did you mean '--steps'?"),
    ({"learning_rate": "1"}, "--learning-rate is unknown. Did you mean '--lr'?"),
    ({"tp": "2"}, "--tp is unknown. Did you mean '--gymlib.width'?"),
    ({"rollout_batch": "2"}, "--rollout-batch is unknown. Did you mean '--prompts-per-step'?"),
    ({"nodes": "2"}, "--nodes is unknown. toy 0.1 has it; use --cluster.hosts in place of it."),
    ({"shards": "2"}, "--shards is unknown. Did you mean '--gymlib.shards'?"),
    ({"gymlib_depth": "2"}, "--gymlib-depth is unknown. Did you mean '--gymlib.depth'?"),
    (
        {"balance_batch": "x"},
        "--balance-batch is unknown. verl has it; `rlcore import verl --balance-batch` tells what stands for "
        "it here.",
    ),
    (
        {"share": "x"},
        "--share is unknown. verl has it; `rlcore import x` tells what stands for it here.",
    ),
    (
        {"fused_rope": "x"},
        "--fused-rope is unknown. verl has settings that begin so; `rlcore import verl --fused-rope` tells "
        "what stands for it here.",
    ),
    ({"beams": "2"}, "--beams is unknown. trl has it; here it is --n (as many)."),
    ({"reward.many.nothing": "2"}, "--reward.many.nothing is unknown."),
    ({"clip": "2"}, "--clip is unknown. Did you mean '--loss.clip'?"),
    ({"loss.clib": "1"}, "--loss.clib is unknown. Did you mean '--loss.clip'?"),
    ({"loss.delta": "1"}, "--loss.delta belongs to loss 'other', but 'clip' is chosen."),
    ({"source.path": "x"}, "--source.path belongs to source 'file', but 'copy' is chosen."),
    (
        {"filter": ["keep"], "filter.drop.below": "1"},
        "--filter.drop.below belongs to filter 'drop', which is not chosen; add --filter drop.",
    ),
    (
        {"group_size": "2"},
        "--group-size: found 2, but advantage 'estimate' compares the samples of a prompt; "
        "expected at least 3.",
    ),
    ({"minibatches": "17"}, "--minibatches: found 17, expected at most --prompts-per-step (16)."),
    (
        {"only": "train"},
        "--only: found train, but the producer 'synchronous' generates rollouts; choose a --producer that "
        "reads saved ones.",
    ),
    ({"min_lr": "0.6"}, "--min-lr: found 0.6, expected at most --lr (0.5)."),
    (
        {"only": "rollout", "save_every": "2"},
        "--save-every: found 2, but --only rollout trains nothing.",
    ),
    ({"warmup_steps": "1.5"}, "--warmup-steps: found '1.5': expected whole steps, or a share below 1."),
    ({"steps": "3", "epochs": "2"}, "--steps and --epochs exclude each other; leave one out."),
    ({"stop_token_ids": ["-1"]}, '--stop-token-ids: found ["-1"]: a token id is 0 or more.'),
    ({"warmup_steps": "100"}, "--warmup-steps: found 100, expected less than --steps (100)."),
    (
        {"over_sample": "2"},
        "--over-sample: found 2.0, but no rollout is partial; add --partial-rollouts.",
    ),
    (
        {"on_publish": "abort"},
        "--on-publish: found abort, but no request is in flight when the weights of a synchronous run "
        "change; add --max-staleness.",
    ),
    (
        {"mask_stale_tokens": "true"},
        "--mask-stale-tokens: found true, but no rollout is partial; add --partial-rollouts.",
    ),
    (
        {"partial_rollouts": "true"},
        "--partial-rollouts: found true with --max-staleness 0, but what is continued has tokens of older "
        "weights; expected --max-staleness 1 or more, or --mask-stale-tokens.",
    ),
    (
        {"max_staleness": "1", "over_sample": "1.5"},
        "--over-sample: found 1.5, expected at most 1, because more groups would grow too old for "
        "--max-staleness 1; add --partial-rollouts, which lets generation rest, or --mask-stale-tokens.",
    ),
    (
        {"max_staleness": "1", "over_sample": "2.5", "partial_rollouts": "true"},
        "--over-sample: found 2.5, expected at most 2, because more groups would grow too old for "
        "--max-staleness 1; add --mask-stale-tokens.",
    ),
    (
        {"tokens_per_rank": "287"},
        "--tokens-per-rank: found 287, expected at least 288, which the longest sample takes "
        "(--max-prompt-tokens plus --max-response-tokens).",
    ),
    (
        {"ranks": "3", "gymlib.width": "2"},
        "--ranks: found 3, expected a multiple of 2, the ranks that hold one model under the trainer's "
        "parallel sizes.",
    ),
    ({"gymlib.late": "1"}, "--gymlib.late: found it beside nothing."),
    ({"gymlib.late": "1", "kl_coef": "0.1"}, "--gymlib.late: found it beside reference."),
    ({"sglang.mem": "1"}, "--sglang.mem needs --engine sglang, but the engine is 'local'."),
]


@pytest.mark.parametrize(("flags", "sentence"), FLAGS, ids=[str(flags) for flags, _ in FLAGS])
def test_a_wrong_flag(make: Make, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make(flags)
    assert str(caught.value) == sentence


FILES = [
    ("steps = 0", "run.toml: steps: found 0, expected an integer of at least 1."),
    ("steps = true", "run.toml: steps: found true, expected an integer of at least 1."),
    ("stop = [1]", "run.toml: stop: found [1], expected a list of texts."),
    ("stepz = 3", "run.toml: stepz is unknown. Did you mean 'steps'?"),
    ("[loss]\nclib = 1", "run.toml: loss.clib is unknown. Did you mean 'loss.clip'?"),
    ("[gymlib]\nhas-x = 1", "run.toml: gymlib.has-x is unknown. Did you mean 'gymlib.has_x'?"),
    ("[loss]\nclip = 2.0", "run.toml: loss.clip: found 2.0, expected a number above 0 and of at most 1."),
    ("[loss]\ndelta = 2.0", "run.toml: loss.delta belongs to loss 'other', but 'clip' is chosen."),
    ("loss = 3", "run.toml: loss: found 3, expected a text."),
    ('filter = "drop"', "run.toml: filter: found 'drop', expected a list of names."),
    ('task = "copi"', "run.toml: task: found 'copi', expected one of add, copy, reverse, sort."),
    ("lr = nan", "run.toml: lr: found NaN, expected a number of at least 0 and of at most 10."),
    ("steps = 2020-01-01", 'run.toml: steps: found "2020-01-01", expected an integer of at least 1.'),
]


@pytest.mark.parametrize(("text", "sentence"), FILES, ids=[text for text, _ in FILES])
def test_a_wrong_key(make: Make, write: Callable[[str], Path], text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make({}, write(text))
    assert str(caught.value).removesuffix(" Did you mean 'copy'?") == sentence


@pytest.mark.parametrize(
    ("key", "offer"),
    [("algo", "one of "), ("model", "a Hugging Face directory, a hub id (OWNER/NAME) or one of ")],
)
def test_a_missing_choice(make: Make, plugins: Any, key: str, offer: str) -> None:
    from rlcore.compose.select import select
    from rlcore.config.layers import Layer

    flags = {"algo": "toy", "model": "tiny"}
    del flags[key]
    sentence = re.escape(f"--{key} is missing: nothing chooses it, expected {offer}")
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        select(plugins.registry, None, Layer(label="", values=flags)).require_complete()


def test_a_reward_must_be_chosen_for_a_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError) as caught:
        make({"data": str(tmp_path / "rows.jsonl")})
    assert str(caught.value) == (
        "--reward is missing: nothing chooses it, expected one of many, token_match."
    )


def test_files_that_can_and_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config .*gone\.toml: No such file or directory\.$"):
        toml.read_settings(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("steps = \n")
    with pytest.raises(ConfigError, match=r"^--config .*bad\.toml: found broken TOML \(Invalid value"):
        toml.read_settings(tmp_path / "bad.toml")
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbfsteps = 3\r\n")
    assert toml.read_settings(tmp_path / "windows.toml") == {"steps": 3}


TINY = {
    "architectures": ["TinyForCausalLM"],
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}
MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"architectures": ["TinyFourCausalLM"]},
        {},
        "config.json names 'TinyFourCausalLM', expected one of LargeForCausalLM, TinyForCausalLM. "
        "Did you mean 'TinyForCausalLM'?",
    ),
    ({"architectures": []}, {}, "config.json names no architecture."),
    ({"max_position_embeddings": 100}, {}, "found 288, expected at most 100, the context of model"),
    ({}, {"gymlib.width": "3"}, "--gymlib.width: found 3, expected a divisor."),
    (
        {"quantization_config": {"quant_method": "fp8"}},
        {},
        "--model: found weights quantized by 'fp8', expected full ones or FP8 (e4m3) with a "
        "weight_block_size, which an engine can take updates of.",
    ),
    (
        {},
        {"replay_routing": "true"},
        "--replay-routing: found true, but the model has no experts; leave it out.",
    ),
]


@pytest.mark.parametrize(("changes", "flags", "sentence"), MODELS)
def test_a_model_that_does_not_fit(
    make: Make, tmp_path: Path, changes: dict[str, Any], flags: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    with pytest.raises(UserError) as caught:
        make({"model": str(tmp_path), "max_prompt_tokens": "32", **flags})
    assert sentence in str(caught.value)


def test_a_family_may_claim_what_no_other_does(plugins: Any) -> None:
    [tiny, _] = plugins.registry.entries(Kind.MODEL)[::-1]
    rest = replace(tiny.record, name="rest", architectures=("*",))
    registry = Registry(
        [*plugins.registry.entries(), Entry(kind=Kind.MODEL, record=rest, provider=tiny.provider)]
    )
    assert claimant(TINY, registry, "here").record.name == "tiny"
    assert claimant({"architectures": ["OtherForCausalLM"]}, registry, "here").record.name == "rest"


def test_two_families_of_one_architecture_are_named(plugins: Any) -> None:
    [tiny, _] = plugins.registry.entries(Kind.MODEL)[::-1]
    other = PluginInfo(name="acme", dist="acme-tiny", version="2.0", origin="acme.plugin")
    twin = Entry(kind=Kind.MODEL, record=replace(tiny.record, name="twin"), provider=other)
    registry = Registry([*plugins.registry.entries(), twin])
    with pytest.raises(UserError) as caught:
        claimant(TINY, registry, "--model: config.json")
    assert str(caught.value) == (
        "--model: config.json names 'TinyForCausalLM', which the model families "
        f"tiny ({tiny.provider}) and twin (acme-tiny 2.0) claim; switch one off with -p no:NAME."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "config.json is broken JSON"),
        ("[" * 10**5, "config.json is broken JSON .nested too deeply"),
        ("[]", "config.json holds no table"),
    ],
)
def test_a_broken_model_config(make: Make, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=sentence):
        make({"model": str(tmp_path)})


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("other", r"config\.json: No such file .* is not a Hugging Face model directory\.$"),
        ("run.toml", r"is a run; write its model out by rlcore export .* OUT, and name OUT\.$"),
        ("complete.json", r"is a checkpoint; write its model out by rlcore convert .* OUT, and name OUT\.$"),
    ],
)
def test_a_directory_that_is_no_model(make: Make, tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UserError, match=said):
        make({"model": str(tmp_path)})


def test_a_hub_id_without_a_network(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"^--model: 'some/model' is no directory here and could not be had"):
        make({"model": "some/model"})


def test_a_hub_that_cannot_be_reached_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A download would log each of its tries, for half a minute. What was had before is taken."""
    import huggingface_hub.constants

    for name, value in (
        ("HF_HUB_OFFLINE", False),
        ("HF_HUB_CACHE", str(tmp_path)),
        ("ENDPOINT", f"http://127.0.0.1:{free_port()}"),
    ):
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ModelError, match=r"could not be had from the hub: .*refused"):
        hub_config("some/model", "--model")
    assert not caplog.records
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "snapshots" / "abc" / "config.json").write_text("{}")
    assert hub_config("some/model", "--model") == str(cached / "snapshots" / "abc")


def test_a_bridge_is_for_its_trainer(make: Make, plugins: Plugins) -> None:
    found = make()
    family = replace(found.model.family, trainer="other")
    foreign = replace(found, model=replace(found.model, family=family))
    with pytest.raises(ConfigError, match=r"written for the trainer 'other', but the trainer is 'gym'"):
        checked(foreign, {}, plugins.registry)
