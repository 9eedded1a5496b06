"""Frozen models: how they are given, who asks them, and what is refused before anything starts."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases
from runs import installed, resolved, run_of

from rlcore import AsksChat, AsksScores, ConfigError
from rlcore.compose.frozen import fields_of, frozen_models
from rlcore.config.layers import Layer
from rlcore_cli.evaluation import resolve_evaluation, select_evaluation

JUDGED: dict[str, Any] = {"reward": ["judge"], "reward.judge.url": "frozen:judge"}
GIVEN: dict[str, Any] = {"frozen": ["judge=/models/judge"], **JUDGED}


def test_a_run_is_read_again_from_its_own_file(tmp_path: Path) -> None:
    fields = {"frozen.judge.tp_size": "2", "frozen.judge.chat_template": "x"}
    first = run_of("grpo", {**GIVEN, **fields, "engine": "sglang"})
    assert frozen_models(first.run) == {"judge": "/models/judge"}
    assert fields_of("judge", first) == {"tp_size": "2", "chat_template": "x"}
    (tmp_path / "run.toml").write_text(first.to_toml())
    assert resolved({}, tmp_path / "run.toml").flat() == first.flat()


def test_a_table_names_models_and_a_flag_takes_their_place(tmp_path: Path) -> None:
    text = (
        'algo = "grpo"\nmodel = "qwen3"\n[reward]\nname = ["judge"]\njudge.url = "frozen:judge"\n[frozen]\n'
    )
    file = tmp_path / "run.toml"
    file.write_text(text + 'judge = "some/where/judge"')
    assert frozen_models(resolved({}, file).run) == {"judge": "some/where/judge"}
    assert frozen_models(resolved({"frozen": ["judge=b"]}, file).run) == {"judge": "b"}
    file.write_text(text + "judge = 3")
    with pytest.raises(ConfigError, match=r"frozen.judge: found 3, expected a directory or a hub id\."):
        resolved({}, file)


def test_a_directory_is_found_again_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    found = run_of("grpo", {**GIVEN, "frozen": ["judge=here"]})
    assert frozen_models(found.run) == {"judge": str(tmp_path / "here")}


@cases("frozen")
def test_what_does_not_fit(case: Case) -> None:
    with case.refused(ConfigError):
        run_of("grpo", case.given)


def test_everything_that_asks_a_server_may_ask_a_frozen_model() -> None:
    of_eval = {"eval": ["a=copy"], "eval.a.reward": "judge", "eval.a.reward.url": "frozen:judge"}
    run_of("grpo", {"frozen": ["judge=/m"], **of_eval})
    run_of("opd", {"frozen": ["t=/m"], "teacher.url": "frozen:t"})


def test_an_evaluation_alone_has_them_too() -> None:
    plugins = installed()
    base = {"model": "qwen3", "engine": "local", "task": "copy", **JUDGED}

    def evaluated(flags: Mapping[str, Any]) -> Any:
        given = Layer(label="", values={**base, **flags})
        return resolve_evaluation(select_evaluation(plugins.registry, None, given), [given], plugins.files)

    assert frozen_models(evaluated({"frozen": ["judge=/m"]}).run) == {"judge": "/m"}
    with pytest.raises(ConfigError, match="--frozen names no 'judge'"):
        evaluated({})


def test_a_token_travels_to_a_worker_and_into_no_file() -> None:
    (part,) = run_of("grpo", GIVEN).rewards
    assert isinstance(part.config, AsksChat)
    served = part.config.served("http://127.0.0.1:4000", "a-secret", "/models/judge")
    assert (served.url, served.held_token) == ("http://127.0.0.1:4000/v1", "a-secret")
    assert pickle.loads(pickle.dumps(served)).held_token == "a-secret"
    assert "a-secret" not in f"{served!r} {served} {served.model_dump()} {served.model_dump_json()}"
    assert (part.config.url, part.config.held_token) == ("frozen:judge", "")
    scored = {"reward": ["reward_model"], "reward.reward_model.url": "frozen:rm", "frozen": ["rm=/models/rm"]}
    (part,) = run_of("grpo", scored).rewards
    assert isinstance(part.config, AsksScores)
    at = part.config.served("http://127.0.0.1:4000", "a-secret", "/models/rm")
    assert (at.url, at.tokenizer, at.held_token) == ("http://127.0.0.1:4000", "/models/rm", "a-secret")
