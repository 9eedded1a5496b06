"""Saved rollouts: which files are found, what a step trains on, and what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import Case, cases
from runs import run_of

from rlcore import ConfigError, DataError, Part, Rollout, RunConfig, TrainBatch
from rlcore.learning.batch_file import save_batch, save_rollout
from rlcore_saved.config import SavedConfig
from rlcore_saved.producer import SavedRollouts, saved_producer
from rlcore_testing.producers import ProducerConformance

BATCH = TrainBatch(
    tokens=torch.arange(4),
    prompt_lengths=torch.tensor([1, 1]),
    response_lengths=torch.tensor([1, 1]),
    per_token={"fresh": torch.ones(2)},
    per_sample={"rollout": torch.arange(2)},
)


def save(folder: Path, *steps: int, version: int | None = None) -> None:
    """As a run does, whose weights have the version of the step before, or `version`."""
    for step in steps:
        metrics = {"rollout/response_tokens": 2.0 * step, "time/rollout_s": 9.0}
        rollout = Rollout(
            step=step, version=step - 1 if version is None else version, groups=(), metrics=metrics
        )
        save_rollout(folder, rollout, replace(BATCH, tokens=BATCH.tokens.roll(step)))


async def made(config: SavedConfig, *, vocabulary: int = 4, done: int = 0) -> list[Rollout]:
    producer = SavedRollouts(files=config.files(), vocabulary=vocabulary)
    return [rollout async for rollout in producer.run(done, config.last_step())]


class TestSaved(ProducerConformance):
    files = 4

    @pytest.fixture(autouse=True)
    def _saved(self, tmp_path: Path) -> None:
        save(tmp_path, *range(1, self.files + 1))
        config = SavedConfig(path=str(tmp_path))
        type(self).part = Part(name="saved", factory="rlcore_saved.producer:saved_producer", config=config)


class TestFewFiles(TestSaved):
    files = 2


@pytest.mark.parametrize("folder", ["", "rollouts"])
async def test_each_file_is_a_step_in_the_order_of_their_numbers(tmp_path: Path, folder: str) -> None:
    save(tmp_path, 10, 2)
    rollouts = await made(SavedConfig(path=str(tmp_path / folder)))
    assert [rollout.step for rollout in rollouts] == [1, 2]
    assert [rollout.metrics["rollout/response_tokens"] for rollout in rollouts] == [4, 20]
    assert all(rollout.metrics["time/rollout_s"] < 9 for rollout in rollouts)
    resumed = await made(SavedConfig(path=str(tmp_path / folder)), done=1)
    assert [rollout.metrics["rollout/response_tokens"] for rollout in resumed] == [20]


async def test_tokens_of_other_weights_are_stale(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, version=0)
    rollouts = await made(SavedConfig(path=str(tmp_path)))
    fresh = [rollout.batch.per_token["fresh"].tolist() for rollout in rollouts if rollout.batch is not None]
    assert fresh == [[1, 1], [0, 0]]


async def test_tokens_of_another_model_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(DataError, match=r"1\.safetensors: has the token 3, and the model a vocabulary of 3"):
        await made(SavedConfig(path=str(tmp_path)), vocabulary=3)


def test_a_folder_without_rollouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--producer\.path .*/none: no such folder"):
        SavedConfig(path=str(tmp_path / "none")).last_step()
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(DataError, match=r"holds no saved rollouts; a run writes them to RUN/rollouts"):
        SavedConfig(path=str(tmp_path)).last_step()
    save_batch(BATCH, tmp_path / "1.safetensors")
    assert SavedConfig(path=str(tmp_path)).last_step() == 1
    (tmp_path / "2.safetensors").touch()
    with pytest.raises(DataError, match=r"2\.safetensors: cannot be read as safetensors"):
        SavedConfig(path=str(tmp_path)).last_step()


def test_a_run_finds_the_folder_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = run_of("grpo", {"producer": "saved", "producer.path": "whole"})
    assert resolved.flat()["producer.path"] == str(tmp_path / "whole")
    assert not resolved.samples


@cases("saved: what does not fit is refused")
def test_what_does_not_fit_is_refused(case: Case) -> None:
    flags = case.given
    with case.refused(ConfigError):
        run_of("grpo", flags)


def test_given_responses_are_not_saved_rollouts() -> None:
    with pytest.raises(
        ConfigError, match="'saved', which does not make the rollouts of a synchronous run on"
    ):
        run_of("sft", {"producer": "saved", "producer.path": "whole"})


def test_samples_of_other_policies_are_refused(tmp_path: Path) -> None:
    save_rollout(tmp_path, Rollout(step=1, version=0, groups=(), metrics={}), BATCH, ["critic"])
    config = SavedConfig(path=str(tmp_path))
    context: Any = SimpleNamespace(run=RunConfig.model_validate({"policy": {"critic": {}}}), vocabulary=4)
    saved_producer(config, context)
    context.run = RunConfig.model_validate({"policy": {"judge": {}}})
    with pytest.raises(DataError, match=r"1\.safetensors: has samples of the further policies \['critic'\]"):
        saved_producer(config, context)
