"""Write the table of hooks in docs/hooks.md, from the hooks' signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from rlcore.api import hookspecs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hooks.md"
TABLE = re.compile(r"(?<=<!-- hooks: scripts/hooks_table\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
USUAL = "once, when the plugins are loaded"
"""When rlcore calls a hook: the page says it above the table. A row says where it is not so."""


def written() -> str:
    """The page with its table made anew."""
    table = "\n".join(["", "| hook | signature | yields |", "| --- | --- | --- |", *_rows(), ""])
    text, count = TABLE.subn(lambda _: f"{table}\n", PAGE.read_text())
    assert count == 1, f"{PAGE} has {count} tables of hooks"
    return text


def _rows() -> Iterator[str]:
    for name, hook in vars(hookspecs).items():
        if name.startswith(f"{hookspecs.PROJECT}_"):
            what, called = (" ".join(text.split()) for text in (inspect.getdoc(hook) or "").split("\n\n")[:2])
            [signature] = re.findall(r"def \w+(\(.*\) -> .*):", inspect.getsource(hook))
            what, called = (text.partition(" ")[2].removesuffix(".") for text in (what, called))
            unlike = "" if called == USUAL else f". Called {called}"
            yield f"| `{name}` | `{signature.replace(chr(34), '')}` | {what}{unlike} |"


if __name__ == "__main__":
    PAGE.write_text(written())
