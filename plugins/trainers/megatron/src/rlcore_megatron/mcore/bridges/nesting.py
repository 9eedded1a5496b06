"""Files that hold a decoder as a part of a larger model, beside a vision tower or a draft."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlcore import FP8_SCALE_SUFFIX, decoder_root, name_in_files

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True, kw_only=True)
class Nesting:
    """What the files of a directory hold beside the decoder that is trained, and how they name this one.

    `carried`: the names of tensors that leave the trainer as they came, in every publication and export.
    """

    root: str = decoder_root(())
    carried: Sequence[str] = ()

    @classmethod
    def of(cls, names: Collection[str], beginnings: tuple[str, ...]) -> "Nesting":
        """The nesting of the `names` in the files; `beginnings`: of the names that are carried."""
        carried = [name for name in names if name.startswith(beginnings)]
        return cls(
            root=decoder_root(names),
            carried=sorted(name for name in carried if not name.endswith(FP8_SCALE_SUFFIX)),
        )

    def in_files(self, name: str) -> str:
        """The name in the files of the weight that transformers' decoder calls `name`."""
        return name_in_files(name, self.root)


@dataclass(frozen=True)
class JoinedExpert:
    """Where one matrix of an expert lies in a tensor of all experts of its layer.

    `gate_up_proj` is [E, 2I, H], first the rows of the gates, and `down_proj` [E, H, I].
    """

    name: str
    number: int
    matrix: str

    @classmethod
    def of(cls, name: str) -> "JoinedExpert | None":
        """The expert of `name`, a weight as it is called where each has its own; None: it is of none."""
        match = _EXPERT.fullmatch(name)
        if match is None:
            return None
        joined = "down_proj" if match[3] == "down" else "gate_up_proj"
        return cls(f"{match[1]}.{joined}", int(match[2]), match[3])

    def rows(self, shape: Sequence[int]) -> slice:
        """The rows in the expert's matrix; `shape`: of the tensor of all experts."""
        half = shape[1] // 2
        return {"gate": slice(0, half), "up": slice(half, shape[1]), "down": slice(0, shape[1])}[self.matrix]
