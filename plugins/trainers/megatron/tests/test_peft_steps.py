"""Ten steps of each of two policies are those of PEFT and torch's AdamW, clipped and with weight decay."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from megatron_ranks import QWEN, share_of
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rlcore import (
    AdapterSpec,
    ModelKind,
    ModelSpec,
    OptimizerSettings,
    Part,
    RoleSpec,
    TokenOutputs,
)
from rlcore_deepseek.tiny import CONFIG as DEEPSEEK
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import adapter_tensors
from rlcore_megatron.testing.adapters import split_off
from rlcore_testing.checkpoints import tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, make_qwen3, random_batch
from rlcore_testing.trainer_reference import TEMPERATURE, hf_distributions, hf_model, linear_loss
from rlcore_toolkit import adapter_name, read_adapter, write_tiny_model

EXACT = 1e-5
STEPS = 10
SETTINGS = OptimizerSettings(lr=1e-3, weight_decay=0.1)
LATENT = Part(name="deepseek_v3", factory="rlcore_deepseek.bridge:DeepseekBridge")
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EXPERT = {**TENSOR, "expert_model_parallel_size": 2}

Steps = tuple[Mapping[str, Tensor], Sequence[float], Tensor]
"""The adapter by PEFT's names, the gradient's norm of each step, and the log-probs of the last samples."""


class FusedAdapters(nn.Module):
    """W + scale · B · A of experts that transformers holds in one tensor, which PEFT cannot adapt one by one.

    `experts`: of each expert, the modules whose outputs are joined.
    """

    def __init__(self, experts: Sequence[Sequence[nn.ParameterList]], scale: float) -> None:
        super().__init__()
        self.experts, self.scale = experts, scale

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * torch.stack(
            [torch.cat([b @ a for a, b in modules]) for modules in self.experts]
        )


def adapt(base: Path, spec: AdapterSpec) -> tuple[Any, dict[str, nn.Parameter]]:
    """transformers' model with the adapter of `spec`, and its A and B by PEFT's names."""
    pairs, model = read_adapter(Path(spec.source)), hf_model(str(base))
    model.requires_grad_(requires_grad=False)
    plain = [name for name in pairs if ".experts." not in name]
    config = peft.LoraConfig(r=spec.rank, lora_alpha=int(spec.alpha), target_modules=plain)
    # in a plain module: of a model with experts PEFT would adapt tensors that hold several
    peft.inject_adapter_in_model(config, nn.Sequential(model))
    trained = {
        adapter_name(name, part): model.get_parameter(f"{name}.lora_{part}.default.weight")
        for name in plain
        for part in "AB"
    }
    for name in plain:
        for part, first in zip("AB", pairs[name], strict=True):
            trained[adapter_name(name, part)].data.copy_(first)
    experts: dict[str, dict[int, Any]] = defaultdict(dict)
    for name in pairs.keys() - plain:
        layer, _, place = name.partition(".experts.")
        number, _, kind = place.partition(".")
        pair = nn.ParameterList([nn.Parameter(part) for part in pairs[name]])
        experts[layer].setdefault(int(number), {})[kind] = pair
        trained |= {adapter_name(name, part): own for part, own in zip("AB", pair, strict=True)}
    for layer, by_number in experts.items():
        for fused, kinds in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            own = [[by_number[number][kind] for kind in kinds] for number in sorted(by_number)]
            held = model.get_submodule(f"{layer}.experts")
            parametrize.register_parametrization(held, fused, FusedAdapters(own, spec.scale))
    return model.eval(), trained


def peft_steps(base: Path, spec: AdapterSpec) -> Steps:
    """Those of torch's AdamW on transformers."""
    model, trained = adapt(base, spec)
    betas = SETTINGS.adam_beta1, SETTINGS.adam_beta2
    adam = torch.optim.AdamW(
        trained.values(), SETTINGS.lr, betas, SETTINGS.adam_eps, weight_decay=SETTINGS.weight_decay
    )
    norms = []
    for seed in range(STEPS):
        batch = random_batch(8, seed)
        adam.zero_grad()
        linear_loss(TokenOutputs(log_probs=hf_distributions(model, batch)[1]), batch).total.backward()
        norms.append(float(nn.utils.clip_grad_norm_(trained.values(), SETTINGS.clip_grad)))
        adam.step()
    scores = hf_distributions(model, batch)[1].detach()
    return {name: one.detach() for name, one in trained.items()}, norms, scores


def megatron_steps(
    rank: int,
    world: int,
    port: int,
    bridge: Part,
    path: str,
    specs: Sequence[AdapterSpec],
    fields: Mapping[str, Any],
) -> list[Steps]:
    """Those of megatron's optimizer, of each policy in turn."""
    fields = check_fields(fields)
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **split(fields).layout)
    model = ModelSpec(path=path, bridge=bridge, fields=fields)
    first, second = specs
    other = RoleSpec(kind=ModelKind.POLICY, model=model, optimizer=SETTINGS, overlay=second)
    role = Role(model, SETTINGS, adapter=first)
    policies = [role, role.further(other)]
    norms: list[list[float]] = [[] for _ in policies]
    for seed in range(STEPS):
        batch = random_batch(8, seed)
        for policy, own in zip(policies, norms, strict=True):
            share = share_of(batch)
            own.append(
                policy.train(share, linear_loss, temperature=TEMPERATURE, tokens_per_rank=60).grad_norm
            )
    scores = [
        policy.forward(batch, temperature=TEMPERATURE, tokens_per_rank=60)["log_probs"] for policy in policies
    ]
    adapters = [adapter_tensors(policy.built) for policy in policies]
    parallel.stop()
    return [*zip(adapters, norms, scores, strict=True)]


@pytest.mark.parametrize("family", ["dense", "latent attention, experts"])
def test_ten_steps_are_those_of_peft(family: str, tmp_path: Path) -> None:
    if family == "dense":
        source, bridge, layout = make_qwen3(tmp_path / "model"), QWEN, TENSOR
        others: tuple[str, ...] = ("o_proj", "gate_proj")
    else:
        source = write_tiny_model(
            tmp_path / "model", {**DEEPSEEK, "q_lora_rank": 24, "vocab_size": VOCAB_SIZE}, 0
        )
        bridge, layout = LATENT, EXPERT
        others = ("o_proj", "gate_proj", "up_proj", "down_proj")
    base, more = tmp_path / "base", {"rank": 3, "targets": others, "seed": 1}
    specs = [
        split_off(source, base, tmp_path / "adapter"),
        split_off(source, tmp_path / "unused", tmp_path / "other", **more),
    ]
    expected = [peft_steps(base, spec) for spec in specs]
    assert min(expected[0][1]) > SETTINGS.clip_grad, "each step of the first is clipped"
    for ranks, fields in ((1, {}), (2, layout)):
        steps = run_ranks(megatron_steps, ranks, bridge, str(base), specs, fields)[-1]
        for spec, (found, norms, scores), wanted in zip(specs, steps, expected, strict=True):
            assert norms == pytest.approx(wanted[1], rel=EXACT)
            assert (scores - wanted[2]).abs().max() <= EXACT
            first = tensors_of(Path(spec.source))
            assert found.keys() == wanted[0].keys()
            for name, one in wanted[0].items():
                assert (found[name] - one).abs().max() <= EXACT, (name, ranks)
                assert (first[name] - one).abs().max() >= 500 * EXACT, name
