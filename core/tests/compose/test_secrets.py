"""What of a run's settings is told to trackers."""

from typing import Any

import pytest
from runs import run_of

from rlcore.compose.secrets import HIDDEN, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "engine.api_key",
        "sglang.admin-api-key",
        "tracker.mine.token",
        "reward.remote.auth_token",
        "engine.password",
        "generator.client_secret",
        "source.aws_secret_access_key",
        "source.credentials",
    ],
)
def test_a_secret_is_hidden_by_its_name(name: str) -> None:
    assert without_secrets({name: "hunter2"}) == {name: HIDDEN}
    assert without_secrets({"table": {name: "hunter2"}}) == {"table": {name: HIDDEN}}
    assert without_secrets({name: ""}) == {name: ""}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("https://me:hunter2@host:8000/v1", f"https://{HIDDEN}@host:8000/v1"),
        ("a=s3://key:secret@bucket/rows.jsonl:0.5", f"a=s3://{HIDDEN}@bucket/rows.jsonl:0.5"),
        ("https://host/rows.jsonl?X-Signature=abc", f"https://host/rows.jsonl?{HIDDEN}"),
        (["https://u:p@host", "plain"], [f"https://{HIDDEN}@host", "plain"]),
        ("http://127.0.0.1:30000/v1", "http://127.0.0.1:30000/v1"),
    ],
)
def test_what_a_url_carries_is_hidden(value: Any, told: Any) -> None:
    assert without_secrets({"data": value}) == {"data": told}


def test_the_settings_of_a_run_are_told_as_they_are() -> None:
    """Names such as `prompt_key`, `max_response_tokens` or `token_env` are no secrets."""
    for algorithm in ("grpo", "ppo"):
        flat = run_of(algorithm).flat()
        assert without_secrets(flat) == flat
    kept = {"source.prompt_key": "question", "reward.remote.token_env": "MY_TOKEN", "stop": ["a token"]}
    assert without_secrets(kept) == kept
