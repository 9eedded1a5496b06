"""Every error of the configuration is one sentence: the place, what was found, what was expected."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore import ConfigError, Kind, ModelError, Registry, UserError, claimant, hub_config
from rlcore.compose.resolved import Resolved
from rlcore.compose.run_checks import checked
from rlcore.config import toml
from rlcore.plugins.loader import Plugins
from rlcore.plugins.registry import Entry, PluginInfo
from rlcore_machine.network import free_port

Make = Callable[..., Resolved]


@cases("flags")
def test_a_wrong_flag(make: Make, case: Case) -> None:
    with case.refused():
        make(case.given)


@cases("files")
def test_a_wrong_key(make: Make, write: Callable[[str], Path], case: Case) -> None:
    file = write(case.given)
    with case.refused():
        make({}, file)


@pytest.mark.parametrize(
    ("key", "offer"),
    [("algo", "one of "), ("model", "a Hugging Face directory, a hub id (OWNER/NAME) or one of ")],
)
def test_a_missing_choice(make: Make, plugins: Any, key: str, offer: str) -> None:
    from rlcore.config.layers import Layer
    from rlcore_cli.select import select

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
        "--reward is missing: nothing chooses it, expected one of many, token_match or FILE.py:FUNCTION."
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


@cases("models")
def test_a_model_that_does_not_fit(make: Make, tmp_path: Path, case: Case) -> None:
    changes, flags = case.given
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    with case.refused(folder=tmp_path):
        make({"model": str(tmp_path), "max_prompt_tokens": "32", **flags})


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


@cases("config errors: a broken model config")
def test_a_broken_model_config(make: Make, tmp_path: Path, case: Case) -> None:
    text = case.given
    (tmp_path / "config.json").write_text(text)
    with case.refused(folder=tmp_path):
        make({"model": str(tmp_path)})


@cases("config errors: a directory that is no model")
def test_a_directory_that_is_no_model(make: Make, tmp_path: Path, case: Case) -> None:
    file = case.given
    (tmp_path / file).touch()
    with case.refused(folder=tmp_path):
        make({"model": str(tmp_path)})


def test_a_hub_id_without_a_network(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"^--model: 'some/model' is no directory here and could not be had"):
        make({"model": "some/model"})


def test_a_hub_that_cannot_be_reached_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, plugins: Plugins
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
        hub_config("some/model", plugins.registry, "--model")
    assert not caplog.records
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "snapshots" / "abc" / "config.json").write_text("{}")
    assert hub_config("some/model", plugins.registry, "--model") == str(
        cached / "snapshots" / "abc" / "config.json"
    )


def test_a_bridge_is_for_its_trainer(make: Make, plugins: Plugins) -> None:
    found = make()
    family = replace(found.model.family, trainer="other")
    foreign = replace(found, model=replace(found.model, family=family))
    with pytest.raises(ConfigError, match=r"written for the trainer 'other', but the trainer 'gym' needs"):
        checked(foreign, {}, plugins.registry)
