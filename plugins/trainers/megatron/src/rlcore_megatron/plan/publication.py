"""Bytes that a publication takes on the device of a rank that sends: a bucket, and what it is made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rlcore import ModelFacts
from rlcore_megatron.plan.engines import is_quantized
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import BYTES
from rlcore_megatron.plan.weights import stage

PARTS = {"qkv": 3, "fc1": 2, "shared_fc1": 2, "experts_fc1": 2}
"""Parts of what is one matrix in the trainer, and several tensors in published files. Rows of the first are
copied apart, those of the others are views."""


@dataclass(frozen=True)
class Sent:
    """A tensor: its bytes in the bucket, those `made` for it until then, and two kinds that pass.

    `passing`: while it is gathered. `quantizing`: two copies in fp32 (`rlcore.quantize_fp8`).
    """

    size: int
    made: float
    passing: float
    quantizing: int


def publication(
    facts: ModelFacts, layout: Layout, dtype: str, sent_as: str, bucket: int, *, fp8: bool = False
) -> int:
    """The most at one time, beside weights of `dtype`, with buckets of `bucket` bytes of `sent_as`.

    `fp8`: what can be is quantized.
    """
    # what decides which tensors a rank has whole, the same of many layouts
    sharing = Layout(
        world=0,
        tensor=min(layout.tensor, 2),
        pipeline=min(layout.pipeline, 2),
        expert=layout.expert,
        expert_tensor=min(layout.expert_tensor, 2),
        mtp=layout.mtp,
    )
    return _peak(facts, sharing, dtype, sent_as, bucket, fp8)


@cache
def _peak(facts: ModelFacts, sharing: Layout, dtype: str, sent_as: str, bucket: int, fp8: bool) -> int:
    copies = 1 if dtype == sent_as and not fp8 else 2  # of a bucket: a cast comes before it
    most = made = 0.0
    before = size = quantizing = 0
    for tensor in _tensors(facts, sharing, BYTES[dtype], BYTES[sent_as], fp8=fp8):
        most = max(most, before + made + tensor.made + tensor.passing)
        if size and size + tensor.size > bucket:  # the bucket is put together, and the next tensor is there
            most = max(most, _sending(before, made + tensor.made, size, quantizing, copies))
            before, size, made, quantizing = size, 0, 0.0, 0
        size += tensor.size
        made += tensor.made
        quantizing = max(quantizing, tensor.quantizing)
    return int(max(most, _sending(before, made, size, quantizing, copies)))


def _sending(before: float, made: float, size: int, quantizing: int, copies: int) -> float:
    """While a bucket of `size` is cast beside the one `before` it, or put together after that."""
    casting = before + made + size + quantizing if copies > 1 else 0
    return max(casting, made + copies * size)


def _tensors(facts: ModelFacts, sharing: Layout, held: int, sent: int, *, fp8: bool) -> Iterator[Sent]:
    """In the order of a publication. `held`, `sent`: bytes of a number in the trainer, and on the way; of
    those in FP8 it is 1.
    """
    whole = stage(facts, Layout(world=1, mtp=sharing.mtp), 0)
    halves = stage(facts, Layout(world=2, tensor=2, mtp=sharing.mtp), 0)
    for weight, half in zip(whole, halves, strict=True):
        is_cut = sharing.tensor > 1 and half.numel < weight.numel
        if weight.is_expert and facts.experts is not None and facts.experts.joint:
            part = weight.numel // facts.experts.count * held  # of an expert, from its ranks and put together
            yield Sent(size=weight.numel * sent, made=weight.numel * held, passing=2 * part, quantizing=0)
            continue
        count, share = 1, float(is_cut or sharing.pipeline > 1 or weight.name == "qkv")
        if weight.is_expert:
            assert facts.experts is not None
            is_cut, count = sharing.expert_tensor > 1, facts.experts.count
            share = 1.0 if is_cut or sharing.pipeline > 1 else 1 - 1 / sharing.expert
        matrix, parts = weight.numel // count, PARTS.get(weight.name, 1)
        made = matrix // parts * held * share
        # beside the whole matrix there are its pieces from the ranks, or the rows that were copied apart
        gathered = matrix * held * (2 if is_cut else 1) if share else 0
        is_small, numel = fp8 and is_quantized(weight), matrix // parts
        tensor = Sent(
            size=numel * (1 if is_small else sent),
            made=made,
            passing=gathered - made,
            quantizing=numel * 2 * BYTES["fp32"] if is_small else 0,
        )
        yield from (tensor for _ in range(count * parts))
