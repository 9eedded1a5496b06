"""A training step on tensors that have sizes and no memory: what this trainer takes, of any architecture.

The model is built, sharded and run as a rank builds, shards and runs it, on fake tensors of torch and a fake
process group: torch's and transformers' own code says what is made, kept and given up.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from rlcore import ALL_LINEAR, AdapterSpec, ConfigError, TrainBatch, torch_dtype
from rlcore_fsdp import attention
from rlcore_fsdp.build import blocks_of, divide, empty_model, materialize
from rlcore_fsdp.head import Head
from rlcore_fsdp.net import Net
from rlcore_fsdp.optimizer import MOMENTS
from rlcore_fsdp.packs import Pack, pack
from rlcore_fsdp.plan.live import LiveBytes
from rlcore_fsdp.quantized import quantize
from rlcore_fsdp.roles import token_outputs
from rlcore_fsdp.shards import local
from rlcore_toolkit import MOST_LOGITS, Piece, is_adaptable, targeted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

FLOAT = 4
"""Bytes of a number in fp32."""
CPU = torch.device("cpu")
PLANNED = "rlcore_planned"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the model of `config`, which is the text of its config.json, in `dtype` ("bf16").

    `tokens` of a micro-batch, in samples of up to `longest`, all of whose tokens are response tokens;
    `micro_batches` of an optimizer step; `adapters`: that of the run's own policy, and those of `policies`;
    none: the whole model trains. `quantize_base`: as the trainer's setting.
    """

    config: str
    dtype: str
    ranks: int
    tokens: int
    longest: int
    micro_batches: int
    recompute: bool
    adapters: tuple[AdapterSpec, ...] = ()
    policies: tuple[str, ...] = ()
    quantize_base: str = "none"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Bytes on the fullest rank. `optimizer`: AdamW's moments. `activations`: with all that a step makes for
    a moment. `trained`: parameters that train on this rank; `parameters`, `active` (those that a token
    meets), `adapted` (those of all adapters): of the whole model; `slot`: numbers of one of any module and
    rank of theirs; `largest`: of the model's largest tensor, in bytes as published. `frozen`: bytes of a
    frozen copy of the model on a rank.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    trained: int
    parameters: int
    active: int
    adapted: int
    slot: int
    largest: int
    frozen: int


@cache
def taken(step: Step) -> Taken:
    """What `step` takes. ModelError where transformers does not build the model, ConfigError of targets."""
    with TemporaryDirectory(prefix="rlcore-plan-") as folder:
        (Path(folder) / "config.json").write_text(step.config)
        model = empty_model(folder, step.dtype, has_files=False)
    parameters = {id(one): one for one in model.parameters()}.values()
    size = torch_dtype(step.dtype).itemsize
    facts = {
        "parameters": sum(one.numel() for one in parameters),
        "active": _active(model),
        "largest": max(one.numel() for one in parameters) * size,
        "frozen": sum(_rows(one, step.ranks) * one.itemsize for one in parameters),
    }
    head, packs = Head(model), {joint: _pack(step, in_one_row=joint) for joint in (True, False)}
    head.most = MOST_LOGITS  # the plan is of GPUs
    adapters, facts["slot"] = _adapted(model, step) if step.adapters else ((), 0)
    facts["adapted"] = sum(one.numel() for one in adapters)
    quantize(model, step.quantize_base)
    with _ranks(step.ranks):
        divide(model, torch_dtype(step.dtype), CPU, trains=True, adapter=adapters or None)
        live = LiveBytes(one for one in model.buffers() if not one.is_meta)
        with FakeTensorMode(allow_non_fake_inputs=True), live, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of views that nobody writes to
            held = _run(model, head, step, packs, live)
    return Taken(**facts, **held)


def _run(model: Any, head: Head, step: Step, packs: Mapping[bool, Pack], live: LiveBytes) -> dict[str, int]:
    net = Net(model, recompute=step.recompute, is_exact=step.dtype == "fp32")
    materialize(model, CPU)
    attention.register(PLANNED, _Causal)
    weights, plain = live.now, model.config._attn_implementation
    try:
        model.set_attn_implementation(PLANNED)
        net.in_one_row = True
        _micro_batches(net, head, step, packs[net.in_one_row])
    except attention.NoPackError:  # a row for each sequence
        model.set_attn_implementation(plain)
        net.in_one_row = False
        live.peak = live.now
        _micro_batches(net, head, step, packs[net.in_one_row])
    trained = [local(one) for one in model.parameters() if one.requires_grad]
    gradients = sum(one.nbytes for one in trained)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": len(MOMENTS) * gradients,
        "activations": live.peak - weights - gradients,
        "trained": sum(one.numel() for one in trained),
    }


def _micro_batches(net: Net, head: Head, step: Step, part: Pack) -> None:
    """One of each adapter: the peak is that of the largest."""
    if not step.adapters:
        _micro_batch(net, head, step, part)
    for number in {spec: number for number, spec in enumerate(step.adapters)}.values():
        from rlcore_fsdp.lora import select  # PEFT takes seconds

        select(net.model, _name(number))
        _micro_batch(net, head, step, part)


def _name(number: int) -> str:
    """PEFT's name of an adapter of `Step.adapters`."""
    return f"policy{number}"


def _micro_batch(net: Net, head: Head, step: Step, part: Pack) -> None:
    def read(hidden_nH: Tensor) -> Mapping[str, Tensor]:
        return token_outputs(head.logits(hidden_nH), part, 1.0)

    if step.micro_batches > 1:  # each adds to the gradients of those before
        for parameter in net.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    net(part, read)["log_probs"].sum().backward()


def _pack(step: Step, *, in_one_row: bool) -> Pack:
    longest = min(step.longest, step.tokens)
    whole, rest = divmod(step.tokens, longest)
    lengths = torch.tensor([longest] * whole + [rest] * (rest > 1))
    batch = TrainBatch(
        tokens=torch.zeros(int(lengths.sum()), dtype=torch.int64),
        prompt_lengths=torch.ones_like(lengths),
        response_lengths=lengths - 1,
    )
    return pack(batch, range(len(batch)), CPU, in_one_row=in_one_row)


class _Causal(attention.PackMask):
    """A window keeps no less than all."""

    def mask(self, piece: Piece) -> None:
        """What sdpa takes for a causal one."""


def _adapted(model: PreTrainedModel, step: Step) -> tuple[Sequence[nn.Parameter], int]:
    """The parameters of the adapters, which PEFT then has in the model, and `Taken.slot`. ConfigError."""
    from rlcore_fsdp.lora import inject, tensors_of  # PEFT takes seconds

    inside = {id(module) for block in blocks_of(model) for module in block.modules()}
    modules = {
        name: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside and is_adaptable(name)
    }
    joint = next((name for name, one in model.named_parameters() if one.dim() > 2 and "expert" in name), None)
    if joint and any(ALL_LINEAR in spec.targets for spec in step.adapters):
        raise ConfigError(
            f"--lora.targets: found {ALL_LINEAR}, but {joint} is one tensor of several experts, for which "
            "the trainer 'fsdp' has no adapter; name the targets without it."
        )
    specs = step.adapters
    chosen = []  # before PEFT changes the names
    for policy, spec in zip(("", *step.policies), specs, strict=True):
        try:
            chosen.append(targeted(modules, spec))
        except ConfigError as error:
            flag = f"--policy.{policy}." if policy else "--lora."
            raise ConfigError(str(error).replace("--lora.", flag)) from error
    parameters: list[nn.Parameter] = []
    for number, (spec, own) in enumerate(zip(specs, chosen, strict=True)):
        layers = inject(model, {module: module for module in own}, spec, _name(number))  # they drop out
        parameters += tensors_of(layers, _name(number)).values()
    union = {module: sum(shape) for own in chosen for module, shape in own.items()}
    return parameters, max(spec.rank for spec in specs) * sum(union.values())


def _active(model: PreTrainedModel) -> int:
    """The parameters that a token meets: of experts in one tensor, as many as config.json says."""
    config: Any = model.config.get_text_config()
    chosen, idle = getattr(config, "num_experts_per_tok", None), 0
    for name, one in model.named_parameters():
        if chosen and one.dim() > 2 and "expert" in name:
            idle += one.numel() - one.numel() * chosen // len(one)
    return sum(one.numel() for one in model.parameters()) - idle


def _rows(parameter: Tensor, ranks: int) -> int:
    """Numbers of the fullest rank's part."""
    return -(-len(parameter) // ranks) * (parameter.numel() // max(1, len(parameter)))


@contextmanager
def _ranks(count: int) -> Iterator[None]:
    """Within, this process is the first of `count` ranks, and the others are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()
