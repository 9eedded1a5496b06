"""Write docs/megatron_fields.md: what becomes of each field of megatron-core's config classes."""

from collections import Counter
from importlib.metadata import version
from pathlib import Path

from rlcore.api.config import flag_name
from rlcore_megatron.field_table import FieldVerdict, Kind, table
from rlcore_megatron.source import CONFIGS, fields_of

PAGE = Path(__file__).parents[1] / "docs" / "megatron_fields.md"
HEAD = """# megatron-core's fields

This page says what becomes of each field of megatron-core's config classes when you set it.

```
rlcore train --algo grpo --model qwen3 --megatron.adam-beta2 0.98
```

`--megatron.FIELD` sets the field in every config class of megatron-core {version} that has it. rlcore
refuses a field that would have no effect, with the reason below, unless you give the value that the run has
anyway. `python scripts/megatron_fields.py` makes this page from `rlcore_megatron/fields.toml`.

| verdict | fields | means |
| --- | --- | --- |
{counts}

In the column *of*, T is TransformerConfig (and MLATransformerConfig), O OptimizerConfig, D
DistributedDataParallelConfig.
"""
MEANINGS: dict[Kind, str] = {
    "honored": "takes its value; tests set it",
    "decided": "rlcore sets it, or a flag of rlcore does",
    "model": "config.json of the model says it",
    "needs": "takes its value if the library and a GPU are there; no test has tried it",
    "unused": "nothing that runs here reads it",
}
CLASSES = {"MLATransformerConfig": "T", "OptimizerConfig": "O", "DistributedDataParallelConfig": "D"}


def page() -> str:
    """The whole page."""
    found = Counter(verdict.kind for verdict in table().values())
    counts = "\n".join(f"| {kind} | {found[kind]} | {means} |" for kind, means in MEANINGS.items())
    text = HEAD.format(version=version("megatron-core"), counts=counts)
    for kind in MEANINGS:
        text += f"\n## {kind}\n\n| field | of | why |\n| --- | --- | --- |\n"
        for name, verdict in table().items():
            if verdict.kind == kind:
                text += f"| `{flag_name('megatron.' + name)}` | {_of(name)} | {_why(verdict)} |\n"
    return text


def _of(name: str) -> str:
    return " ".join(CLASSES[config] for config in CONFIGS if name in fields_of(config))


def _why(verdict: FieldVerdict) -> str:
    reason = verdict.why or (f"use `{verdict.flag}`" if verdict.flag else verdict.called or "of the model")
    values = "" if verdict.values is None else ", ".join(f"`{value}`" for value in verdict.values)
    return f"{reason}; the run has {values}" if values else reason


if __name__ == "__main__":
    PAGE.write_text(page())
