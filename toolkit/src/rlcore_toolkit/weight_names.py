"""Between the names of the files and those in memory: transformers fuses experts, renames and stacks.

transformers says by its conversions what becomes of each name. Both ways are planned from names alone, so a
tensor is read, gathered and converted when its turn comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

Read = Callable[[str], Tensor]
"""From a name to its tensor."""

_DRAFT = re.compile(r"(model\.|language_model\.|llm\.)*(mtp\w*|layers\.\d+)\.")
"""Begins the names of what is left out: layers for multi-token prediction, and buffers of old files."""


@dataclass
class Conversion:
    """Tensors that become others. `sources`: their names, each with its pattern in `transform`."""

    transform: Any
    first: str
    sources: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether one tensor becomes one, unchanged."""
        return isinstance(self.transform, WeightRenaming)

    def convert(self, read: Read, model: PreTrainedModel) -> dict[str, Tensor]:
        """The tensors that it makes, by their names."""
        transform = deepcopy(self.transform)
        for name, pattern in self.sources:
            transform.add_tensor(self.first, name, pattern, lambda name=name: read(name))
        made = transform.convert(self.first, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


class WeightNames:
    """The names of a directory's tensors beside those of the model in memory."""

    def __init__(
        self, model: PreTrainedModel, files: Collection[str], state: Mapping[str, Tensor] | None = None
    ) -> None:
        """`files`: the names in the directory. `state`: the model's own tensors; None: all that it has."""
        self._model, self._files = model, frozenset(files)
        self._transforms = get_model_conversion_mapping(model)
        self.unknown: list[str] = []
        """Names in the directory that the model has no place for."""
        self.reading = self._reading(files, model.state_dict() if state is None else state)

    @property
    def sources(self) -> dict[str, str]:
        """Name in memory → name in the directory, of the tensors that come unchanged."""
        return {one.first: one.sources[0][0] for one in self.reading if one.is_plain}

    @property
    def carried(self) -> list[str]:
        """Names of what the directory has beside the decoder (a vision tower): it leaves as it came."""
        return [name for name in self.unknown if not _DRAFT.match(name)]

    def tensors(
        self, read: Callable[[str, slice], Tensor], rows: Callable[[str], slice] = lambda name: slice(None)
    ) -> Iterator[tuple[str, Tensor]]:
        """Name in memory and tensor of all that the directory has a tensor for.

        `read`: from a name in the directory to these rows of its tensor. `rows`: those that are wanted of a
        name in memory.
        """
        for conversion in self.reading:
            name = conversion.first
            if conversion.is_plain:
                yield name, read(conversion.sources[0][0], rows(name))
                continue
            whole = conversion.convert(lambda source: read(source, slice(None)), self._model)
            for name, tensor in whole.items():
                yield name, tensor[rows(name)]

    def writing(self, names: Collection[str]) -> Writing:
        """The way back, of the names in memory."""
        used = [transform.reverse_transform() for transform in self._transforms[::-1] if transform.was_used()]
        renamings = [one for one in used if isinstance(one, WeightRenaming)]
        converters = [one for one in used if isinstance(one, WeightConverter)]
        by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        found: dict[str, Conversion] = {}
        for name in sorted(names, key=dot_natural_key):
            first, pattern = rename_source_key(name, [], converters)
            if pattern is None:
                first = name if name in self._files else rename_source_key(name, renamings, [])[0]
                conversion = found.setdefault(first, Conversion(WeightRenaming(name, first), first))
            else:
                conversion = found.setdefault(first, Conversion(by_pattern[pattern], first))
            conversion.sources.append((name, pattern or name))
        return Writing(self._model, list(found.values()), renamings)

    def _reading(self, files: Collection[str], state: Mapping[str, Tensor]) -> list[Conversion]:
        renamings = [one for one in self._transforms if isinstance(one, WeightRenaming)]
        converters = [one for one in self._transforms if isinstance(one, WeightConverter)]
        by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        prefix = self._model.base_model_prefix
        found: dict[str, Conversion] = {}
        for name in sorted(files, key=dot_natural_key):
            first, pattern = rename_source_key(name, renamings, converters, prefix, dict(state))
            if first not in state and name in state:
                first, pattern = name, None
            if first not in state:
                self.unknown.append(name)
                continue
            transform = by_pattern[pattern] if pattern else WeightRenaming(name, first)
            found.setdefault(first, Conversion(transform, first)).sources.append((name, pattern or name))
        return list(found.values())


@dataclass(frozen=True)
class Writing:
    """How the tensors in memory become those of a directory, in one order."""

    model: PreTrainedModel
    conversions: list[Conversion]
    renamings: list[WeightRenaming]

    def tensors(self, read: Read) -> Iterator[tuple[str, Tensor]]:
        """Name in the directory and tensor of all. `read`: from a name in memory."""
        for conversion in self.conversions:
            for name, tensor in conversion.convert(read, self.model).items():
                yield name if conversion.is_plain else rename_source_key(name, self.renamings, [])[0], tensor
