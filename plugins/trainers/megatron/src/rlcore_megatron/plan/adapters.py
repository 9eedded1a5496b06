"""The parameters of an adapter on one rank, in the order in which the trainer registers them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlcore import ALL_LINEAR, ConfigError, LoraOptions, ModelFacts, RunConfig
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.weights import Weight, stage

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class UncountedAdapterError(ConfigError):
    """The planner does not count adapters of such a model."""


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """`rank`: of the adapter. `targets`: its modules, among `TARGETS`. `travels`: it alone is published."""

    rank: int
    targets: frozenset[str]
    travels: bool = False

    @classmethod
    def of(cls, run: RunConfig, facts: ModelFacts) -> "tuple[Adapted, ...]":
        """That of each policy; empty: they have none. ConfigError where bytes are not known from `facts`."""
        if not run.has_overlay:
            return ()
        if run.lora.source:
            raise ConfigError("--lora.from: rlcore plan reads no adapter; say its rank by --lora.rank.")
        if facts.latent or facts.delta or facts.sandwich:
            raise UncountedAdapterError(
                "--lora.rank: the planner of 'megatron' counts adapters of plain attention and of MLPs with "
                "gate and up apart, which this model has not; plan with --trainer fsdp."
            )
        further = {f"policy.{name}": run.of_policy(name).lora for name in run.policies}
        return tuple(cls._of(table, lora) for table, lora in {"lora": run.lora, **further}.items())

    @classmethod
    def _of(cls, table: str, lora: LoraOptions) -> "Adapted":
        targets = frozenset(TARGETS if ALL_LINEAR in lora.targets else lora.targets)
        if unknown := sorted(targets - set(TARGETS)):
            raise ConfigError(
                f"--{table}.targets: found {unknown[0]!r}, of which the planner of 'megatron' knows no size; "
                f"expected {ALL_LINEAR}, or some of {', '.join(TARGETS)}."
            )
        return cls(rank=lora.rank, targets=targets, travels=lora.publish == "adapter")


def whole_numbers(facts: ModelFacts, adapters: Iterable[Adapted]) -> int:
    """Numbers of all `adapters`, undivided."""
    whole = (adapter_weights(facts, Layout(world=1), 0, adapted) for adapted in adapters)
    return sum(weight.numel for weights in whole for weight in weights)


def adapter_weights(facts: ModelFacts, layout: Layout, number: int, adapted: Adapted) -> list[Weight]:
    """Those of pipeline stage `number`."""
    return [
        part for weight in stage(facts, layout, number) for part in _parts(facts, layout, weight, adapted)
    ]


def _parts(facts: ModelFacts, layout: Layout, weight: Weight, adapted: Adapted) -> Iterator[Weight]:
    """The As of a layer's modules, then their Bs."""
    modules = [one for one in _modules(facts, layout, weight.name) if one[0] in adapted.targets]
    held = facts.experts.count // layout.expert if weight.is_expert and facts.experts else 1
    for part in (1, 2):
        for name, *sizes in modules:
            numel = held * adapted.rank * sizes[part - 1]
            yield Weight(f"{name}_{'_ab'[part]}", numel, is_expert=weight.is_expert)


def _modules(facts: ModelFacts, layout: Layout, name: str) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs on this rank of what `name` joins."""
    hidden, tensor, experts = facts.hidden, layout.tensor, facts.experts
    queries, keys = facts.heads * facts.head // tensor, facts.groups * facts.head // tensor
    if name == "qkv":
        wide = (2 if facts.output_gate else 1) * queries
        return [("q_proj", hidden, wide), ("k_proj", hidden, keys), ("v_proj", hidden, keys)]
    if name == "proj":
        return [("o_proj", queries, hidden)]
    kind, _, layer = name.rpartition("_")
    widths = {"": facts.width // tensor}
    if experts is not None:
        widths |= {"experts": experts.width // layout.expert_tensor, "shared": experts.shared // tensor}
    if layer not in ("fc1", "fc2") or kind not in widths:
        return []
    width = widths[kind]
    up = [("gate_proj", hidden, width), ("up_proj", hidden, width)]
    return up if layer == "fc1" else [("down_proj", width, hidden)]


def adapter_numbers(
    facts: ModelFacts, layout: Layout, adapted: Adapted, rows: tuple[int, int], *, is_sparse: bool
) -> int:
    """Numbers that a layer keeps for the backward pass of its adapters: A x, and what joins several modules.

    `rows`: tokens, and those of a rank where the sequence is divided. `is_sparse`: the layer has experts.
    """
    tokens, split = rows
    experts, total = facts.experts, 0
    kinds = ["fc"]
    if is_sparse and experts is not None:
        kinds = ["experts_fc", *(["shared_fc"] if experts.shared else [])]
    for name in ("qkv", "proj", *(f"{kind}{number}" for kind in kinds for number in (1, 2))):
        modules = [one for one in _modules(facts, layout, name) if one[0] in adapted.targets]
        held = experts.count // layout.expert if experts and name.startswith("experts") else 1
        passing = tokens * experts.active if experts and name.startswith("experts") else tokens
        if name in ("proj", "fc2", "shared_fc2"):
            passing = split
        width = adapted.rank * len(modules)
        total += passing * width
        if len(modules) > 1:  # As on top of each other, Bs in the blocks of one matrix
            total += held * width * (modules[0][1] + sum(outputs for *_, outputs in modules))
    return total
