"""The fields of megatron-core's config classes, and what becomes of each.

The fields are read from its source, since importing it takes seconds. The verdicts are in `fields.toml`.
"""

import ast
import functools
import importlib.util
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

FILES = {
    "ModelParallelConfig": "model_parallel_config.py",
    "TransformerConfig": "transformer/transformer_config.py",
    "MLATransformerConfig": "transformer/transformer_config.py",
    "OptimizerConfig": "optimizer/optimizer_config.py",
    "DistributedDataParallelConfig": "distributed/distributed_data_parallel_config.py",
}
"""Config class → its file in `megatron.core`."""
CONFIGS = ("MLATransformerConfig", "OptimizerConfig", "DistributedDataParallelConfig")
"""The classes that `--megatron.FIELD` sets; the first has the fields of TransformerConfig as well."""


@dataclass(frozen=True, kw_only=True)
class KnownField:
    """`annotation`: as the class has it. `default`: its value, or its text where that takes an import."""

    annotation: str
    default: Any

    @property
    def type(self) -> Any:
        """The annotation's value. NameError where it names classes of megatron-core or torch."""
        return eval(self.annotation, dict(vars(typing)))  # it is megatron-core's own code


@functools.cache
def known_fields() -> Mapping[str, KnownField]:
    """Every field of megatron-core's config classes."""
    return {name: field for config in CONFIGS for name, field in fields_of(config).items()}


@functools.cache
def fields_of(config: str) -> Mapping[str, KnownField]:
    """The fields of this class, those of its bases included."""
    (node,) = (
        node for node in _parsed(FILES[config]).body if isinstance(node, ast.ClassDef) and node.name == config
    )
    fields: dict[str, KnownField] = {}
    for base in node.bases:
        fields |= fields_of(ast.unparse(base))
    for line in node.body:
        if isinstance(line, ast.AnnAssign):
            annotation = ast.unparse(line.annotation)
            fields[ast.unparse(line.target)] = KnownField(annotation=annotation, default=_default(line.value))
    return fields


def _default(value: ast.expr | None) -> Any:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    if value is None:
        return None
    text = ast.unparse(value)
    try:
        return eval(text, {})  # 1024 * 1024 is no literal
    except NameError:
        return text


@functools.cache
def _parsed(file: str) -> ast.Module:
    folder = folder_of("megatron.core")
    if folder is None:
        raise ModuleNotFoundError("megatron-core is not installed")
    return ast.parse((folder / file).read_text())


def folder_of(package: str) -> Path | None:
    """Where this package lies, None where it does not. Nothing of it is imported."""
    root, _, path = package.partition(".")
    spec = importlib.util.find_spec(root)
    folders = spec.submodule_search_locations if spec is not None else None
    inside = (Path(folder, *path.split(".")) for folder in folders or ())
    return next((folder for folder in inside if folder.is_dir()), None)


Kind = Literal["honored", "decided", "model", "needs", "unused"]


@dataclass(frozen=True, kw_only=True)
class FieldVerdict:
    """What becomes of one field. `why` ends a sentence. `flag`: the setting of rlcore in its place.

    `library`: the module that a field of kind "needs" waits for, `called` so in messages. `values`: those
    that the run has anyway, in place of megatron-core's default. `under`: the field, and its value or values,
    without which this one would have no effect.
    """

    kind: Kind
    why: str = ""
    flag: str = ""
    library: str = ""
    called: str = ""
    values: Sequence[Any] | None = None
    under: Mapping[str, Any] = field(default_factory=dict)


@functools.cache
def table() -> Mapping[str, FieldVerdict]:
    """Field → its verdict, in the order of the file."""
    read = tomllib.loads((files("rlcore_megatron") / "fields.toml").read_text())
    verdicts: dict[str, FieldVerdict] = {}
    for group in read["groups"]:
        kind, names, values = group.pop("verdict"), group.pop("names"), read["values"]
        verdicts |= {name: FieldVerdict(kind=kind, values=values.get(name), **group) for name in names}
    return verdicts
