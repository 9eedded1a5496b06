"""Write docs/settings.md: every setting of a run, from the config classes themselves."""

from pathlib import Path

from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.plugins.loader import Switches, load
from rlcore.plugins.registry import LIST_KINDS

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Made by `python scripts/settings_page.py` from the config classes. `rlcore train … --help` shows those of the
parts that are chosen, with the defaults that apply there.

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
    rows = ["| flag | default | meaning |", "| --- | --- | --- |"]
    fields = fields_of(config)
    for name, info in fields.items():
        default = "required" if info.is_required() else repr(info.get_default(call_default_factory=True))
        rows.append(f"| `{flag_name(table + name)}` | `{default}` | {info.description} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
