"""What of the engines' settings is refused before anything starts."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases
from runs import run_of

from rlcore import ConfigError, ModelError, RunConfig
from rlcore.compose.engine_groups import group_fields, group_of
from rlcore.compose.resolved import Resolved
from rlcore.compose.run_checks import engine_complaints
from rlcore.preparation.engine_checks import check_ports
from rlcore.preparation.prepare import prepare
from rlcore_machine.network import is_free

HERE, THERE = "http://127.0.0.1:3000", "http://127.0.0.1:3001"


def complaints(*passed: str, **fields: Any) -> list[str]:
    return list(engine_complaints(RunConfig.of(**fields), passed))


def test_engines_of_others_are_as_many_as_named() -> None:
    assert complaints(engine_url=[HERE, THERE]) == []
    assert complaints(engine_url=[HERE, THERE], engines=2) == []
    (said,) = complaints(engine_url=[HERE, THERE], engines=3)
    assert said == "--engines: found 3, but --engine-url names 2; leave --engines out."


@cases("engines: url")
def test_what_does_not_fit(case: Case) -> None:
    (found,) = complaints(**case.given)
    case.check(found)
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


def test_adapters_of_a_group_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore_sglang.fields.require_version", lambda *_: "0.5.23")
    flags = {
        "engine": "sglang",
        "engine_group": ["plain=1", "long=1"],
        "engine_group.long.lora_paths": "a=/x",
    }
    adapter = {"lora.rank": "2", "lora.publish": "adapter", "task": "copy"}
    with pytest.raises(ModelError, match="/x"):
        prepare(run_of("grpo", {**flags, **adapter}), tmp_path, None)


@cases("engines: groups")
def test_groups_that_cannot_be(make: Callable[..., Resolved], case: Case) -> None:
    with case.refused(ConfigError):
        make(case.given)


def test_a_router_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = run_of("grpo", {"router": "round_robin"})
    with pytest.raises(ConfigError, match="--router: found 'random', expected one of cache_aware, round_ro"):
        run_of("grpo", {"router": "random"})
    monkeypatch.setattr(type(resolved.engine.config), "routers", {})
    with pytest.raises(ConfigError, match="found round_robin, but --engine local has no router; leave it"):
        run_of("grpo", {"router": "round_robin"})
