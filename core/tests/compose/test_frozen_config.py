"""Frozen models: how they are given, who asks them, and what is refused before anything starts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runs import installed, run_of

from rlcore.api.errors import ConfigError
from rlcore.api.server_config import AsksChat, AsksScores
from rlcore.compose.frozen import fields_of, frozen_models
from rlcore.compose.resolve import resolve
from rlcore.compose.resolved import Resolved
from rlcore.compose.select import select
from rlcore.config import toml
from rlcore.config.layers import Layer
from rlcore_cli.evaluation import resolve_evaluation, select_evaluation

JUDGED: dict[str, Any] = {"reward": ["judge"], "reward.judge.url": "frozen:judge"}
GIVEN: dict[str, Any] = {"frozen": ["judge=/models/judge"], **JUDGED}
UNASKED = (
    "--frozen: found 'judge', which nothing asks; give frozen:judge where a server's URL is expected, as to "
    "--teacher-url, --reward.judge.url or --reward.reward-model.url, or leave it out."
)


def of_file(path: Path, text: str, flags: Mapping[str, Any] | None = None) -> Resolved:
    path.write_text(text)
    plugins = installed()
    file = Layer(label=str(path), values=toml.read_settings(path))
    selection = select(plugins.registry, file, Layer(label="", values=flags or {}))
    return resolve(selection)


def test_a_run_is_read_again_from_its_own_file(tmp_path: Path) -> None:
    fields = {"frozen.judge.tp_size": "2", "frozen.judge.chat_template": "x"}
    first = run_of("grpo", {**GIVEN, **fields, "engine": "sglang"})
    assert frozen_models(first.run) == {"judge": "/models/judge"}
    assert fields_of("judge", first) == {"tp_size": "2", "chat_template": "x"}
    assert of_file(tmp_path / "run.toml", first.to_toml()).flat() == first.flat()


def test_a_table_names_models_and_a_flag_takes_their_place(tmp_path: Path) -> None:
    text = (
        'algo = "grpo"\nmodel = "qwen3"\n[reward]\nname = ["judge"]\njudge.url = "frozen:judge"\n[frozen]\n'
    )
    found = of_file(tmp_path / "a.toml", text + 'judge = "some/where/judge"')
    assert frozen_models(found.run) == {"judge": "some/where/judge"}
    found = of_file(tmp_path / "b.toml", text + 'judge = "a"', {"frozen": ["judge=b"]})
    assert frozen_models(found.run) == {"judge": "b"}
    with pytest.raises(ConfigError, match=r"frozen.judge: found 3, expected a directory or a hub id\."):
        of_file(tmp_path / "c.toml", text + "judge = 3")


def test_a_directory_is_found_again_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    found = run_of("grpo", {**GIVEN, "frozen": ["judge=here"]})
    assert frozen_models(found.run) == {"judge": str(tmp_path / "here")}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"frozen": ["judge=/m"]}, UNASKED),
        (
            {**GIVEN, "frozen": ["judge"]},
            "--frozen: found 'judge', expected NAME=MODEL, with a name of lower-",
        ),
        ({**GIVEN, "frozen": ["Judge=/m"]}, "--frozen: found 'Judge=/m', expected NAME=MODEL"),
        (
            {**GIVEN, "frozen": ["judge=/a", "judge=/b"]},
            "--frozen: found the name 'judge' twice, expected each",
        ),
        (
            {**GIVEN, "reward.judge.url": "frozen:jugde"},
            "--reward.judge.url: found 'frozen:jugde', but --frozen names no 'jugde'; add --frozen "
            "jugde=MODEL. Did you mean 'judge'?",
        ),
        (
            JUDGED,
            "--reward.judge.url: found 'frozen:judge', but --frozen names no 'judge'; add --frozen judge",
        ),
        (
            {"eval": ["a=copy"], "eval.a.reward": "judge", "eval.a.reward.url": "frozen:x"},
            "--eval.a.reward.url: found 'frozen:x', but --frozen names no 'x'; add --frozen x=MODEL.",
        ),
        (
            {"distill_coef": "0.1", "teacher_url": "frozen:t"},
            "--teacher-url: found 'frozen:t', but --frozen names no 't'; add --frozen t=MODEL.",
        ),
        (
            {**GIVEN, "frozen.judge.tp_size": "2"},
            "--frozen.judge.tp-size: the engine 'local' takes no fields of its own; leave it out.",
        ),
        (
            {**GIVEN, "engine": "sglang", "frozen.jugde.tp_size": "2"},
            "--frozen.jugde.tp-size belongs to the frozen model 'jugde', which does not exist. Did you mean "
            "'judge'?",
        ),
    ],
)
def test_what_does_not_fit(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of("grpo", flags)
    assert str(caught.value).startswith(said)


def test_everything_that_asks_a_server_may_ask_a_frozen_model() -> None:
    of_eval = {"eval": ["a=copy"], "eval.a.reward": "judge", "eval.a.reward.url": "frozen:judge"}
    run_of("grpo", {"frozen": ["judge=/m"], **of_eval})
    run_of("opd", {"frozen": ["t=/m"], "teacher_url": "frozen:t"})


def test_an_evaluation_alone_has_them_too() -> None:
    plugins = installed()
    base = {"model": "qwen3", "engine": "local", "task": "copy", **JUDGED}

    def resolved(flags: Mapping[str, Any]) -> Any:
        given = Layer(label="", values={**base, **flags})
        return resolve_evaluation(select_evaluation(plugins.registry, None, given), [given], plugins.files)

    assert frozen_models(resolved({"frozen": ["judge=/m"]}).run) == {"judge": "/m"}
    with pytest.raises(ConfigError, match="--frozen names no 'judge'"):
        resolved({})


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
