"""Checks of the engines' settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from rlcore.api.config import flag_name
from rlcore.api.run_config import RunConfig

URL = "expected a URL such as http://127.0.0.1:30000"


def engine_complaints(run: RunConfig, passed: Sequence[str]) -> Iterator[str]:
    """Settings of engines that the run does not start, or does not have.

    `passed`: given fields of their table.
    """
    if run.serving.engine_url:
        yield from _external_complaints(run)
        if passed:
            first = flag_name(passed[0])
            yield f"{first} has no effect on the servers of --engine-url; give it where they are started."
        if run.evaluation.eval_engines:
            yield (
                f"--eval-engines: found {run.evaluation.eval_engines}, but the servers of --engine-url are "
                "not started here; leave it out."
            )
    elif run.serving.engine_weights_dir:
        yield "--engine-weights-dir is for the servers of --engine-url, and none is given; leave it out."
    if run.serving.router is not None and run.loss.replay_routing:
        yield "--replay-routing: found true, but the router asks no engine for its experts; drop --router."


def _external_complaints(run: RunConfig) -> Iterator[str]:
    for url in run.serving.engine_url:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield f"--engine-url: found {url!r}, {URL}."
        if parts.username or parts.password:
            yield "--engine-url: found a user or password in it; set RLCORE_ENGINE_TOKEN instead."
    if len(set(run.serving.engine_url)) < len(run.serving.engine_url):
        yield f"--engine-url: found {', '.join(run.serving.engine_url)}; expected each server once."
    if run.serving.engines not in (1, len(run.serving.engine_url)):
        named = len(run.serving.engine_url)
        yield f"--engines: found {run.serving.engines}, but --engine-url names {named}; leave --engines out."
