"""Immutable sequences of numbers that take a few bytes each: what a `Sample` holds for every token.

They behave as tuples do: compared with tuples, sliced, iterated, added to tuples, hashed. `numpy.asarray`
reads them in place, so a tensor is made without a loop over the tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

SHOWN = 64
"""Numbers in a `repr`, which asyncio makes of whatever a task returns."""

N = TypeVar("N", int, float)


@total_ordering
class Packed(Sequence[N]):
    """Numbers of one C type. Raises TypeError or OverflowError for a value that the type cannot hold."""

    __slots__ = ("_array",)

    code: ClassVar[str]
    """The type code of `array.array`, and of numpy."""

    _array: array[N]  # nothing here changes it

    def __init__(self, values: Iterable[N] = ()) -> None:
        """Values of the same kind are shared, not copied."""
        self._array = values._array if type(values) is type(self) else _array_of(self.code, values)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """Reads numbers in this machine's byte order. ValueError if `data` is no whole number of them."""
        return cls._of(array(cls.code, bytes(data)))

    @classmethod
    def full(cls, length: int, value: N) -> Self:
        """`value`, `length` times."""
        return cls._of(_array_of(cls.code, (value,)) * length)

    @classmethod
    def _of(cls, numbers: array[N]) -> Self:
        packed = cls.__new__(cls)
        packed._array = numbers
        return packed

    @classmethod
    def joined(cls, rows: Iterable[Iterable[N]]) -> bytes:
        """The numbers of all `rows`, one after the other, in this machine's byte order."""
        return b"".join([row._array if type(row) is cls else _array_of(cls.code, row) for row in rows])

    def to_bytes(self) -> bytes:
        """What `from_bytes` reads."""
        return self._array.tobytes()

    @property
    def memory(self) -> memoryview:
        """The numbers where they lie, in this machine's byte order; read-only."""
        return memoryview(self._array).toreadonly()

    # --- as a tuple does -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[N]:
        return iter(self._array)

    @overload
    def __getitem__(self, index: int) -> N: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> N | Self:
        return self._of(self._array[index]) if isinstance(index, slice) else self._array[index]

    def __contains__(self, value: object) -> bool:
        return value in self._array

    def count(self, value: Any) -> int:
        """How often `value` is there."""
        return self._array.count(value)

    def __add__(self, other: Sequence[N]) -> Self:
        if not isinstance(other, Packed | tuple):
            return NotImplemented
        return self._of(self._array + _array_of(self.code, other))

    def __radd__(self, other: tuple[N, ...]) -> tuple[N, ...]:
        # A list is left alone: `values += packed` extends it.
        return other + tuple(self._array) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: int) -> Self:
        return self._of(self._array * times)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if type(other) is type(self) and self.to_bytes() == other.to_bytes():
            return True  # a NaN in them too, as where two tuples hold the same one
        if isinstance(other, Packed):
            return bool(self._array == other._array)
        if isinstance(other, tuple | list):
            # A NaN equals `math.nan`, which stands for it in tuples.
            return len(self) == len(other) and all(
                mine == value or (mine != mine and value is math.nan)
                for mine, value in zip(self._array, other, strict=True)
            )
        return NotImplemented

    def __lt__(self, other: Any) -> bool:
        return tuple(self) < tuple(other) if isinstance(other, Packed | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._array))

    def __repr__(self) -> str:
        more = f" and {len(self) - SHOWN} more" if len(self) > SHOWN else ""
        return f"{type(self).__name__}({self._array[:SHOWN].tolist()}{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (type(self), self.to_bytes())  # a method would be pickled anew each time

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read-only where it is not copied."""
        import numpy as np  # servers and reward workers do without

        return np.array(np.frombuffer(self.memory, dtype=self.code), dtype=dtype, copy=copy)


class PackedInts(Packed[int]):
    """int32: token ids."""

    __slots__ = ()
    code = "i"


class PackedFlags(Packed[int]):
    """int8: a mask of 0 and 1."""

    __slots__ = ()
    code = "b"


class PackedFloats(Packed[float]):
    """float64, so that a float of Python stays what it is: log-probs."""

    __slots__ = ()
    code = "d"

    def __hash__(self) -> int:
        # The hash of a NaN is that of the object, and there is a new one each time.
        return hash(tuple(math.nan if value != value else value for value in self._array))


@dataclass(frozen=True)
class _Stored:
    """How pydantic reads and writes the fields below: as a list of numbers."""

    kind: type[Packed[Any]] = field(repr=False)
    number: type[int | float] = field(repr=False)

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema as core

        return core.no_info_after_validator_function(
            self.kind,
            handler.generate_schema(Sequence[self.number]),  # type: ignore[name-defined] # built at run time
            serialization=core.plain_serializer_function_ser_schema(list),
        )


TokenIds: TypeAlias = Annotated[PackedInts | tuple[int, ...], _Stored(PackedInts, int)]
"""A field that is given as either, and always read as `PackedInts`."""
TokenMask: TypeAlias = Annotated[PackedFlags | tuple[int, ...], _Stored(PackedFlags, int)]
"""A field that is given as either, and always read as `PackedFlags`."""
TokenFloats: TypeAlias = Annotated[PackedFloats | tuple[float, ...], _Stored(PackedFloats, float)]
"""A field that is given as either, and always read as `PackedFloats`."""


def _from_bytes(kind: type[Packed[N]], data: bytes) -> Packed[N]:
    return kind.from_bytes(data)


def pack(fields: dict[str, Any], kinds: Mapping[str, type[Packed[Any]]]) -> None:
    """Make those of an object's `fields` that `kinds` names of their kind."""
    for name, kind in kinds.items():
        if name in fields and type(fields[name]) is not kind:
            fields[name] = kind(fields[name])


def _array_of(code: str, values: Iterable[N]) -> array[N]:
    if type(values) is tuple:  # the common case; the checks below take longer than a short response
        return array(code, values)
    if isinstance(values, Packed):
        values = values._array
    elif isinstance(values, bytes | bytearray | str):  # which `array` would take for raw memory
        raise TypeError(f"found {type(values).__name__}, expected numbers")
    return array(code, values)
