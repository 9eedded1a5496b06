"""Write docs/slime_flags.md: what stands for each flag of slime, from the table of `rlcore import slime`."""

import itertools
from pathlib import Path

from rlcore.api.config import flag_name
from rlcore_import.slime.translate import table
from rlcore_import.table import Rule

PAGE = Path(__file__).parents[1] / "docs" / "slime_flags.md"
HEAD = """# slime's flags

This page says what `rlcore import slime` makes of each flag of slime, and of Megatron's that slime passes on.

```
rlcore import slime --rollout-batch-size 32 --n-samples-per-prompt 8 --rm-type math
```

[Coming from slime](migrating_from_slime.md) says how to use the command. In the tables, `*` stands for any
ending, and a word in bold says that a flag becomes no setting:

- **implied**: rlcore does so anyway, or reads it elsewhere.
- **no meaning**: rlcore has nothing that the flag could change.
- **not possible**: rlcore cannot do it; the row says what to do instead.

`python scripts/slime_flags.py` makes this page from the command's own table,
`plugins/commands/import/src/rlcore_import/slime/flags.toml`.
"""


def page() -> str:
    """The whole page."""
    text = HEAD
    for topic, rules in itertools.groupby(table().rules.values(), key=lambda rule: rule.topic):
        text += f"\n## {topic}\n\n| slime | rlcore |\n| --- | --- |\n"
        for said, alike in itertools.groupby(rules, key=_said):
            text += f"| {' '.join(f'`--{rule.flag}`' for rule in alike)} | {said} |\n"
    return text


def _said(rule: Rule) -> str:
    for word, why in (("implied", rule.implied), ("no meaning", rule.idle), ("not possible", rule.no)):
        if why:
            return f"**{word}**: {_escaped(why)}"
    settings = [rule.to] if rule.to else _settings(rule)
    own = "FIELD"  # many flags share this row
    shown = ", ".join(f"`{flag_name(setting).replace('*', own)}`" for setting in settings)
    note = _escaped(rule.note)
    if not note or note.startswith(
        (shown.removesuffix("`"), f"`{flag_name(settings[0])}" if settings else "-")
    ):
        return note or shown  # the note names the setting itself
    return f"{shown}: {note}" if shown else note


def _settings(rule: Rule) -> list[str]:
    mapped = [value for value in (rule.values or {}).values() if isinstance(value, dict)]
    return list(dict.fromkeys([*rule.set, *(key for value in mapped for key in value)]))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
