"""An adapter is PEFT's: log-probs, gradients, files and merged weights, on one rank and on two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_ranks import ADAPTER, BUDGET, SETTINGS, join, model_of, policy_of, policy_spec, scores, train
from peft import PeftModel

from rlcore import ConfigError, RunConfig, TokenOutputs
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.roles import LanguageModel
from rlcore_fsdp.shards import whole
from rlcore_fsdp.trainer import FsdpTrainer
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, make_qwen3, random_batch
from rlcore_testing.trainer_reference import TEMPERATURE, hf_distributions, hf_model, linear_loss

EXACT = 1e-5


def adapted(rank: int, world: int, port: int, path: str, folder: str, source: str) -> dict[str, Any]:
    """Two steps on this rank's share, what is saved then, and PEFT's model of that."""
    joined = join(rank, world, port, FsdpConfig())
    policy = policy_of(joined, policy_spec(model_of(path), replace(ADAPTER, source=source)))
    batch = random_batch(8)
    first = scores(policy, batch)
    for _ in range(2):
        train(policy, batch, rank, world)
    after = scores(policy, batch)
    policy.stage().write(Path(folder))
    merged, plain = {name: one.clone() for name, one in policy.hf_tensors()}, hf_model(path)
    base = hf_distributions(plain, batch)[1]
    peft = PeftModel.from_pretrained(plain, folder, is_trainable=True).eval()
    wanted = hf_distributions(peft, batch)[1]
    linear_loss(TokenOutputs(log_probs=wanted), batch).total.backward()
    train(policy, batch, rank, world)
    slopes = {name: whole(one.grad) for name, one in policy.adapter.tensors.items() if one.grad is not None}
    named = {name.replace(".default.", "."): one for name, one in peft.named_parameters()}
    theirs: dict[str, Any] = {name: one.grad for name, one in named.items() if one.requires_grad}
    policy.load(Path(folder))
    again = hf_model(path)
    again.load_state_dict(merged)
    gaps = {
        "PEFT": after - wanted,
        "merged": after - hf_distributions(again, batch)[1],
        "loaded": after - scores(policy, batch),
        "base": scores(policy.base, batch) - base,
        "start": scores(policy.start, batch) - first,
        "gradients": torch.stack([(slopes[name] - slope).abs().max() for name, slope in theirs.items()]),
    }
    joined.stop()
    moved = float((after - first).abs().max())
    return {"moved": moved, "names": slopes.keys() == theirs.keys()} | {
        name: float(gap.detach().abs().max()) for name, gap in gaps.items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_adapter_is_that_of_peft(ranks: int, tmp_path: Path) -> None:
    """Also one that goes on from the files of the first."""
    path, folders, source = str(make_qwen3(tmp_path / "model")), ("one", "two"), ""
    for name in folders:
        for gaps in run_ranks(adapted, ranks, path, str(tmp_path / name), source):
            assert gaps.pop("names")
            assert gaps.pop("moved") > 0.1
            assert all(gap < EXACT for gap in gaps.values()), gaps
        source = str(tmp_path / name)


def test_what_peft_cannot_adapt_alone_is_refused(tmp_path: Path) -> None:
    model = model_of(str(make_experts(tmp_path / "model")))
    trainer = FsdpTrainer(FsdpConfig())
    assert trainer.overlay(RunConfig.of(**{"lora.rank": 4, "lora.targets": ("q_proj",)}), model).rank == 4
    with pytest.raises(ConfigError, match=r"--lora\.targets: found .*experts.*in one tensor with others"):
        trainer.overlay(RunConfig.of(**{"lora.rank": 4}), model)


def dropped(rank: int, world: int, port: int, path: str, folder: str) -> list[Any]:
    """Log-probs and the gradient's norm of the same adapter without and with dropout; of the latter again."""
    joined, batch, found, source = join(rank, world, port, FsdpConfig()), random_batch(8), [], ""
    for dropout in (0.0, 0.5):
        adapter = replace(ADAPTER, source=source, dropout=dropout)
        policy = policy_of(joined, policy_spec(model_of(path), adapter))
        if not source:
            train(policy, batch)
            policy.stage().write(Path(folder))
            source = folder
        found.append((scores(policy, batch), train(policy, batch).grad_norm))
    with pytest.raises(ZeroDivisionError):
        policy.train(batch, lambda *_: 1 / 0, temperature=TEMPERATURE, tokens_per_rank=BUDGET)
    again = [scores(policy, batch) for _ in "ab"]
    joined.stop()
    return [*found, again]


def test_inputs_drop_out_in_training_alone(tmp_path: Path) -> None:
    """Also before the first step, and after one that an exception ends."""
    [found] = run_ranks(dropped, 1, str(make_qwen3(tmp_path / "model")), str(tmp_path / "adapter"))
    (plain, norm), (scores, other), again = found
    assert torch.equal(plain, scores)
    assert abs(other - norm) > 0.01 * norm
    assert torch.equal(*again)


def ten_steps(rank: int, world: int, port: int, path: str, folder: str) -> list[tuple[float, float]]:
    """With the optimizer on the device and on the host: how far ten steps go, and from PEFT's how far."""
    batch, found, joined = random_batch(8), [], join(rank, world, port, FsdpConfig())
    for on_host in (False, True):
        policy = LanguageModel(policy_spec(model_of(path)), FsdpConfig(optimizer_on_host=on_host), None)
        policy.stage().write(Path(folder))
        peft = PeftModel.from_pretrained(hf_model(path), folder, is_trainable=True).eval()
        trained = [one for one in peft.parameters() if one.requires_grad]
        betas = SETTINGS.adam_beta1, SETTINGS.adam_beta2
        theirs = torch.optim.AdamW(
            trained, SETTINGS.lr, betas, SETTINGS.adam_eps, weight_decay=SETTINGS.weight_decay
        )
        first = hf_distributions(peft, batch)[1].detach()
        for _ in range(10):
            theirs.zero_grad()
            linear_loss(TokenOutputs(log_probs=hf_distributions(peft, batch)[1]), batch).total.backward()
            theirs.step()
            train(policy, batch)
        ours = scores(policy, batch)
        wanted = hf_distributions(peft, batch)[1].detach()
        found.append((float((ours - first).abs().max()), float((ours - wanted).abs().max())))
    joined.stop()
    return found


def test_ten_steps_are_those_of_peft(tmp_path: Path) -> None:
    [found] = run_ranks(ten_steps, 1, str(make_qwen3(tmp_path / "model")), str(tmp_path / "adapter"))
    assert all(moved > 0.5 and gap < 1e-4 for moved, gap in found)
