"""The suite of engines names what an engine lacks: `local`, with one fault each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, copy_package, fails

import rlcore_local
from rlcore_local.config import LocalConfig
from rlcore_machine import ForkServer
from rlcore_testing.conformance import Subject
from rlcore_testing.engines import EngineConformance

FAULTS = [
    Fault(
        name="of_the_likeliest_token",
        file="sampler.py",
        old="return ids.squeeze(1), logprobs.gather(1, ids).squeeze(1)",
        new="return ids.squeeze(1), logprobs.max(1).values",
        missing="log probs are those of transformers",
    ),
    Fault(
        name="one_version",
        file="scheduler.py",
        old="            self.set_version(version)\n",
        new="            pass\n",
        missing="published weights are generated with",
    ),
    Fault(
        name="stop_in_text",
        file="sequences.py",
        old="return text[: place if trim else place + len(matched)]",
        new="return text[: place + len(matched)]",
        missing="stop strings end and their tokens are kept",
        reason="assert stop not in answer.text",
    ),
    Fault(
        name="never_stops",
        file="sequences.py",
        old='self.finish = {"type": "stop", "matched": token}',
        new='self.finish = {"type": "length", "length": self.limit}',
        missing="the end token ends and is kept",
    ),
    Fault(
        name="open_door",
        file="app.py",
        old="if request.path != HEALTH and not hmac.compare_digest(given, expected):",
        new="if False:",
        missing="a token is required",
        reason="DID NOT RAISE",
    ),
    Fault(
        name="one_temperature",
        file="sampler.py",
        old="logits / draws.temperature if draws.scaled else logits",
        new="logits",
        missing="log probs include the temperature",
    ),
    Fault(
        name="of_the_unlikeliest_token",
        file="sampler.py",
        old="ids = logprobs.argmax(-1, keepdim=True)\n    else:",
        new="ids = logprobs.argmin(-1, keepdim=True)\n    else:",
        missing="greedy takes the likeliest token",
    ),
    Fault(
        name="without_filters",
        file="sampler.py",
        old="if param.top_k > 0 or param.top_p < 1 or param.min_p > 0",
        new="if param.min_p > 0",
        missing="filters keep the likely tokens",
    ),
    Fault(
        name="equal_siblings",
        file="service.py",
        old="enumerate(noise_keys(seed, prompt, params.n))",
        new="enumerate(noise_keys(seed, prompt, 1) * params.n)",
        missing="n samples of one prompt differ",
    ),
    Fault(
        name="own_stops",
        file="sequences.py",
        old="elif token in self.stop_ids:",
        new="elif False:",
        missing="stop token ids end and are kept",
    ),
    Fault(
        name="no_pause",
        file="scheduler.py",
        old="        self.paused = True\n",
        new="        pass\n",
        missing="pause holds and resume goes on",
        reason="paused, it",
    ),
    Fault(
        name="no_abort",
        file="controls.py",
        old="await self.service.call(lambda: self.scheduler.abort(rids))",
        new="await self.service.call(lambda: None)",
        missing="abort returns what was sampled",
        reason="the request ran to its end, aborted or not",
    ),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the packages lie; their servers are forked from a process that has imported torch."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        with ForkServer(LocalConfig.preload) as server:
            patch.setattr(ForkServer, "current", server)
            yield folder


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    FAULTS,
    ids=lambda fault: fault.name,
)
def test_an_engine_with_a_fault(fault: Fault, root: Path) -> None:
    package = root / f"local_with_{fault.name}"
    copy_package(Path(rlcore_local.__file__).parent, package)
    break_package(package, fault)
    part = importlib.import_module(f"{package.name}.testing").LOCAL
    found = fails(EngineConformance.of(Subject(record=None, part=part)), fault.missing)
    assert fault.reason in found[fault.missing]
