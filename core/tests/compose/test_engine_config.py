"""What of the engines' settings is refused before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore.api.errors import ConfigError
from rlcore.api.run_config import RunConfig
from rlcore.compose.engine_groups import group_fields, group_of
from rlcore.compose.resolved import Resolved
from rlcore.compose.run_checks import engine_complaints
from rlcore.runtime.engine_checks import check_ports
from rlcore_machine.network import is_free

HERE, THERE = "http://127.0.0.1:3000", "http://127.0.0.1:3001"


def complaints(*passed: str, **fields: Any) -> list[str]:
    return list(engine_complaints(RunConfig.of(**fields), passed))


def test_engines_of_others_are_as_many_as_named() -> None:
    assert complaints(engine_url=[HERE, THERE]) == []
    assert complaints(engine_url=[HERE, THERE], engines=2) == []
    (said,) = complaints(engine_url=[HERE, THERE], engines=3)
    assert said == "--engines: found 3, but --engine-url names 2; leave --engines out."


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"engine_url": ["127.0.0.1:3000"]}, "found '127.0.0.1:3000', expected a URL such as"),
        ({"engine_url": ["http://me:secret@127.0.0.1:3000"]}, "set RLCORE_ENGINE_TOKEN instead"),
        ({"engine_url": [HERE, HERE]}, "expected each server once"),
        ({"engine_weights_dir": "/mnt"}, "--engine-weights-dir is for the servers of --engine-url"),
    ],
)
def test_what_does_not_fit(fields: dict[str, Any], said: str) -> None:
    (found,) = complaints(**fields)
    assert said in found
    assert "secret" not in found


def test_fields_of_an_engine_are_for_servers_that_the_run_starts() -> None:
    assert complaints("sglang.tp_size") == []
    (said,) = complaints("sglang.tp_size", engine_url=[HERE])
    assert said.startswith("--sglang.tp-size has no effect on the servers of --engine-url")


def test_a_port_in_use_is_seen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(ConfigError, match=f"--engine.port: found {port} for 2 engines, but port {port} "):
            check_ports(port, 2)
        with pytest.raises(ConfigError, match=f"--engine.port: found {port}, but port {port} "):
            check_ports(port, 1)
    assert is_free(port)
    assert not is_free(65536)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, None),
        ({"max_staleness": "1", "partial_rollouts": True}, None),
        (
            {"placement": "split"},
            "with --placement split, where engines have devices of their own; leave it out.",
        ),
        (
            {"max_staleness": "2"},
            "--sleep: found optimizer with --max-staleness 2, where trainer and engines work",
        ),
    ],
)
def test_when_a_trainer_has_time_to_sleep(flags: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert run_of("grpo", {"sleep": "optimizer", **flags}).run.sleep == "optimizer"
        return
    with pytest.raises(ConfigError, match=said):
        run_of("grpo", {"sleep": "optimizer", **flags})


def test_a_trainer_that_cannot_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = run_of("grpo")
    monkeypatch.setattr(type(resolved.trainer.config), "sleeps", False)
    with pytest.raises(ConfigError, match="the trainer 'megatron' cannot leave its devices"):
        run_of("grpo", {"sleep": "all"})


GROUPS = {
    "engine": "sglang",
    "engine_group": ["short=1", "long=2"],
    "sglang.max_running_requests": "64",
    "engine_group.long.max_running_requests": "8",
}


def test_engine_groups(make: Callable[..., Resolved], write: Callable[[str], Path]) -> None:
    resolved = make(GROUPS)
    assert resolved.run.serving.engines == 3
    assert group_fields("short", resolved) == {"max_running_requests": "64"}
    assert group_fields("long", resolved) == {"max_running_requests": "8"}
    assert [group_of(number, resolved.run) for number in range(4)] == ["short", "long", "long", None]
    assert make({}, write(resolved.to_toml())).to_toml() == resolved.to_toml()
    table = 'engine = "sglang"\n[engine_group]\nname = ["a=1"]\n[engine_group.a]\ntp_size = 2\n'
    assert group_fields("a", make({}, write(table))) == {"tp_size": 2}
    assert make({}, write('engine = "sglang"\n[engine_group]\na = 2\n')).run.serving.engine_group == ("a=2",)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"engine_group": ["a"]},
            "--engine-group: found 'a', expected NAME=N, with a name of lower-case letters",
        ),
        ({"engine_group": ["a=0"]}, "--engine-group: found 'a=0', expected NAME=N"),
        ({"engine_group": ["a=1", "a=2"]}, "--engine-group: found the name 'a' twice, expected each once."),
        ({**GROUPS, "engines": "2"}, "--engines: found 2, but the groups of --engine-group have 3"),
        (
            {**GROUPS, "engine_group.lnog.tp_size": "1"},
            "--engine-group.lnog.tp-size belongs to the engine group 'lnog', which does not exist. Did ",
        ),
        (
            {"engine_group": ["a=1"], "engine_group.a.tp_size": "1"},
            "--engine-group.a.tp-size: the engine 'local' takes no fields of its own; leave it out.",
        ),
        (
            {"engine_group": ["a=1"], "engine_url": ["http://a:1"]},
            "--engine-group: the servers of --engine-url are not started here; leave it out.",
        ),
    ],
)
def test_groups_that_cannot_be(make: Callable[..., Resolved], flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(flags)
    assert str(caught.value).startswith(said)


def test_a_router_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = run_of("grpo", {"router": "round_robin"})
    with pytest.raises(ConfigError, match="--router: found 'random', expected one of cache_aware, round_ro"):
        run_of("grpo", {"router": "random"})
    monkeypatch.setattr(type(resolved.engine.config), "routers", {})
    with pytest.raises(ConfigError, match="found round_robin, but --engine local has no router; leave it"):
        run_of("grpo", {"router": "round_robin"})
