"""Write docs/slime_flags.md: what stands for each flag of slime, from the table of `rlcore import slime`."""

import itertools
from pathlib import Path

from rlcore_import.slime.translate import table
from rlcore_import.table import Rule

PAGE = Path(__file__).parents[1] / "docs" / "slime_flags.md"
HEAD = """# slime's flags

This page says what `rlcore import slime` makes of each flag of slime and of its fork miles, and of
Megatron's that they pass on.

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
    word, text = rule.told
    escaped = text.replace("|", "\\|")
    return f"**{word}**: {escaped}" if word else escaped


if __name__ == "__main__":
    PAGE.write_text(page())
