"""Write docs/settings.md: every setting of a run, from the config classes themselves."""

import re
from pathlib import Path

from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.config.fields import describe
from rlcore.plugins.loader import Switches, load
from rlcore.plugins.registry import LIST_KINDS
from rlcore_cli.flags import default_text

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

This page lists every setting of a run and of the bundled parts: flag, default, what it takes, meaning.

```
rlcore train --algo grpo --model qwen3 --help      # the settings of what you chose, with their defaults
```

A list takes its flag once for each item. What is true or false has two flags, such as `--shuffle` and
`--no-shuffle`, `--advantage.std` and `--no-advantage.std`.

A recipe or a model's preset may have another default than this page: the help shows it.
[Configuration](configuration.md) says how to give settings in a file or from Python.
`python scripts/settings_page.py` makes this page from the config classes.

"""


def page() -> str:
    """The whole page."""
    text = HEAD + "## The run\n\n" + _table(RunConfig, "")
    registry = load(Switches()).registry
    for kind in Kind:
        for name in registry.names(kind):
            record = registry.find(kind, name, "").record
            config = getattr(record, "config", None)
            if config is None or not config.model_fields:
                continue
            table = f"{kind}.{name}." if kind in LIST_KINDS else f"{kind}."
            text += f"\n## {kind.value} `{name}`\n\n" + _table(config, table)
    return text


def _table(config: type[Config], table: str) -> str:
    rows = ["| flag | default | takes | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields_of(config).items():
        value = default_text(field.get_default(call_default_factory=True))
        ticks = "``" if "`" in value else "`"
        default = "required" if field.is_required() else f"{ticks}{value}{ticks}"
        takes = re.sub(r'"(\S+)"', r"`\1`", describe(field))
        takes = re.sub(r"(?<=that matches )(\S+)", r"`\1`", takes)
        meaning = re.sub(r"<(\S*?)>", r"`<\1>`", field.description or "")
        cells = (f"`{flag_name(table + name)}`", default, takes, meaning)
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n")


if __name__ == "__main__":
    PAGE.write_text(page())
