"""Adapters onto the linear layers of a model: which modules of Hugging Face each layer joins, and how.

The bridge's own layouts say it: they are given matrices that hold the number of each of their rows, and hand
them back in megatron's order.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlcore import AdapterSpec, ModelError
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.bridges.bridge import MBridge, ModelBridge
from rlcore_megatron.mcore.layers.adapter import AdaptedModule, Adapter, AdapterSet, Place
from rlcore_toolkit import adapted_modules, current_device, first_a, linear_modules, read_adapter

_DIGIT, _DIGITS = 128, 4
"""Numbers are written with digits below 128, which bf16 has exactly."""

Sizes = tuple[tuple[int, int], ...]
"""Outputs and inputs of the modules that a layer joins."""


def attach(bridge: ModelBridge, chunks: Sequence[nn.Module], spec: AdapterSpec) -> AdapterSet:
    """Give the linear layers of `chunks` their adapters, in place of any others, with the first values.

    Collective.
    """
    if not isinstance(bridge, MBridge):
        raise ModelError(f"--lora.rank: the bridge {type(bridge).__name__} has no adapters; leave it out.")
    maker, pairs = _Maker(bridge, spec), []
    for chunk in chunks:
        numbers = bridge.numbered(chunk)
        for name, layer in chunk.named_modules():
            if isinstance(getattr(layer, "place", None), Place) and not isinstance(layer, Adapter):
                pairs.append((layer, maker.adapter(numbers[f"{name}.weight"], layer)))
    adapters = AdapterSet(pairs)
    _check_all(bridge, adapters, maker.targets)
    adapters.put()
    return adapters


def _check_all(bridge: MBridge, adapters: AdapterSet, targets: Collection[str]) -> None:
    """ModelError where a targeted module is in no layer of any rank. Collective."""
    own = [name for _, adapter in adapters for module in adapter.hf_modules for name in module.names]
    every: list[list[str]] = [own] * dist.get_world_size()
    dist.all_gather_object(every, own)
    left = sorted(set(targets).difference(*every))
    if left:
        raise ModelError(
            f"--lora.targets: {bridge.path} has {left[0]!r}, for which the bridge {type(bridge).__name__} "
            "has no adapter; leave it out."
        )


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """`of_modules`: for each joined module, its rows in megatron's order. `mine`: the module of each row that
    this rank has.
    """

    of_modules: Sequence[Tensor]
    mine: Tensor


class _Maker:
    def __init__(self, bridge: MBridge, spec: AdapterSpec) -> None:
        self._bridge, self._spec = bridge, spec
        self._sizes, self.targets = linear_modules(bridge.path), adapted_modules(bridge.path, spec)
        self._first = read_adapter(Path(spec.source)) if spec.source else {}
        self._rows: dict[tuple[str, Sizes], _Rows] = {}

    def adapter(self, name: str, layer: Any) -> Adapter | None:
        """That of `layer`, whose weight megatron calls `name`; None: nothing of it is targeted."""
        experts = list(self._names(name, layer))
        chosen = [number for number, module in enumerate(experts[0]) if module in self.targets]
        for names in experts:
            if [number for number, module in enumerate(names) if module in self.targets] != chosen:
                raise ModelError(
                    f"--lora.targets: found {', '.join(self._spec.targets)}, which match {experts[0][0]} but "
                    f"not {names[0]}, or the reverse; expected all experts of a layer or none."
                )
        if not chosen:
            return None
        sizes = tuple(self._sizes[module] for module in experts[0])
        rows = self._rows_of(name, layer, sizes)
        pieces = _pieces(name, layer, sizes)
        modules = [
            self._module([names[number] for names in experts], rows.of_modules[number], layer, pieces)
            for number in chosen
        ]
        return Adapter(
            modules,
            _order(rows.mine, chosen),
            layer.place,
            scale=self._spec.scale,
            dropout=self._spec.dropout,
            sequence_parallel=bool(layer.config.sequence_parallel),
        ).to(current_device())

    def _names(self, name: str, layer: Any) -> Iterator[list[str]]:
        """The modules that the layer joins; of a layer of experts those of each that this rank has."""
        count = len(layer.weight) if layer.place.is_expert else 1
        for number in range(count):
            own = f"{name}{parallel.expert_rank() * count + number}" if layer.place.is_expert else name
            weights = self._bridge.hf_names(own)
            yield [weight.removesuffix(".weight") for weight in weights]

    def _rows_of(self, name: str, layer: Any, sizes: Sizes) -> _Rows:
        """Layers of one kind have the same rows."""
        key = (re.sub(r"\d+", "", name), sizes)
        if key not in self._rows:
            self._rows[key] = self._read_rows(name, layer, sizes)
        return self._rows[key]

    def _read_rows(self, name: str, layer: Any, sizes: Sizes) -> _Rows:
        expert = f"{name}0" if layer.place.is_expert else name
        weight = layer.weight[0] if layer.place.is_expert else layer.weight
        numbered = [_numbered(number, *size) for number, size in enumerate(sizes)]
        whole = self._bridge.joined(expert, numbered)
        modules, rows = _read(whole)
        of_modules = [rows[modules == number] for number in range(len(sizes))]
        if not layer.place.cuts_rows:
            return _Rows(of_modules=of_modules, mine=modules)
        mine, own = _read(self._bridge.own_part(expert, weight, numbered))
        size, rank = _group(layer.place)
        for number, every in enumerate(of_modules):
            parts = [part.chunk(size)[rank] for part in every.chunk(_pieces(name, layer, sizes))]
            assert torch.equal(own[mine == number], torch.cat(parts)), "ranks divide each module evenly"
        return _Rows(of_modules=of_modules, mine=mine)

    def _module(self, names: Sequence[str], rows: Tensor, layer: Any, pieces: int) -> AdaptedModule:
        pairs = [self._pair(name, rows, layer.place, pieces) for name in names]
        parts = [*zip(*pairs, strict=True)]
        whole = [torch.stack(part) if layer.place.is_expert else part[0] for part in parts]
        a, b = (part.to(current_device(), layer.weight.dtype).contiguous() for part in whole)
        return AdaptedModule(names=names, rows=rows, first=(a, b))

    def _pair(self, name: str, rows: Tensor, place: Place, pieces: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the first A and B."""
        outputs, inputs = self._sizes[name]
        a, b = self._first.get(name) or (
            first_a(self._spec, name, inputs),
            torch.zeros(outputs, self._spec.rank),
        )
        size, rank = _group(place)
        b = b[rows] if pieces == 1 else b[rows].unflatten(0, (pieces, -1))
        return (
            a.chunk(size, dim=1)[rank] if place.cuts_columns else a,
            b.chunk(size, dim=-2)[rank] if place.cuts_rows else b,
        )


def _pieces(name: str, layer: Any, sizes: Sizes) -> int:
    """How many runs of rows of a module ranks divide each for itself: gate and up may be one module."""
    return 2 if len(sizes) == 1 and ".linear_fc1." in name and layer.config.gated_linear_unit else 1


def _group(place: Place) -> tuple[int, int]:
    """How many ranks divide such a layer, and which of them this is."""
    if place.is_expert:
        return parallel.expert_tensor_size(), parallel.expert_tensor_rank()
    return parallel.tensor_size(), parallel.tensor_rank()


def _numbered(module: int, outputs: int, inputs: int) -> Tensor:
    """[outputs, inputs] with the number of the module in the first column, and that of the row behind it."""
    assert inputs > _DIGITS, "a matrix is wide enough for its numbers"
    matrix, row = torch.zeros(outputs, inputs), torch.arange(outputs)
    matrix[:, 0] = module
    for place in range(_DIGITS):
        matrix[:, 1 + place] = row // _DIGIT**place % _DIGIT
    return matrix


def _read(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """What `_numbered` wrote: module and row of each row."""
    digits = matrix[:, : 1 + _DIGITS].long()
    return digits[:, 0], (digits[:, 1:] * _DIGIT ** torch.arange(_DIGITS)).sum(1)


def _order(mine: Tensor, chosen: Sequence[int]) -> Tensor | None:
    """For each row of the layer, the one in the outputs of the `chosen` modules; as `Adapter` says."""
    order, start = torch.full_like(mine, -1), 0
    for number in chosen:
        is_own = mine == number
        order[is_own] = start + torch.arange(int(is_own.sum()))
        start += int(is_own.sum())
    order[order < 0] = start
    return None if torch.equal(order, torch.arange(len(order))) else order
