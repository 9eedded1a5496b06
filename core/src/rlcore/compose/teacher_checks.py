"""Checks of the teacher's settings: each says in one sentence what to change."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from rlcore.api.inputs import Input, TopTokens
from rlcore.api.run_config import RunConfig
from rlcore.api.server_config import frozen_name
from rlcore.compose.suggestions import Suggestions


def teacher_complaints(
    run: RunConfig, readers: list[str], top: TopTokens | None, suggestions: Suggestions
) -> Iterator[str]:
    """`readers`: what reads the teacher's log-probs, in words; `top`: what the loss compares beside them."""
    model, urls = run.teacher.teacher_model, run.teacher.teacher_url
    given = [f"--teacher-model: found {model!r}"] if model else []
    given += [f"--teacher-url: found {urls[0]!r}"] if urls else []
    if given and not readers:
        ways = suggestions.recipes_reading(Input.TEACHER_LOG_PROBS, "--distill-coef")
        yield f"{given[0]}, but nothing reads the teacher{ways}."
    if readers and not given:
        yield (
            f"--teacher-model: found none, but {readers[0]} compares with a teacher; add --teacher-model "
            "PATH or --teacher-url URL."
        )
    if len(given) > 1:
        yield f"{given[0]}, and {given[1]}; expected one teacher."
    if urls:
        yield from _url_complaints(run, top)


def _url_complaints(run: RunConfig, top: TopTokens | None) -> Iterator[str]:
    found = f"--teacher-url: found {run.teacher.teacher_url[0]!r}"
    names = [name for name, _ in run.teacher.teachers]
    for name, url in run.teacher.teachers:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and parts.netloc
        if not is_url and frozen_name(url) is None:
            yield f"--teacher-url: found {url!r}, expected a URL such as http://127.0.0.1:30000."
        if names.count(name) > 1:
            what = f"the name {name!r}" if name else "a URL without a name"
            yield f"--teacher-url: found {what} twice; expected NAME=URL, each name once."
    if run.sampling.temperature != 1.0:
        yield (
            f"--temperature: found {run.sampling.temperature:g}, but the engine of --teacher-url scores at "
            "temperature 1; expected 1, or --teacher-model."
        )
    if top is not None:
        yield (
            f"{found}, but the loss compares {top.count} tokens of each position, and an engine scores the "
            "sampled token alone; use --teacher-model."
        )
