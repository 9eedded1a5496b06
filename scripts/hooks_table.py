"""Write the table of hooks in docs/hooks.md, from the hooks' signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from rlcore.api import hookspecs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hooks.md"
TABLE = re.compile(r"(?<=<!-- hooks: scripts/hooks_table\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def written() -> str:
    """The page with its table made anew."""
    table = "\n".join(
        ["", "| hook | signature | yields | called |", "| --- | --- | --- | --- |", *_rows(), ""]
    )
    text, count = TABLE.subn(lambda _: f"{table}\n", PAGE.read_text())
    assert count == 1, f"{PAGE} has {count} tables of hooks"
    return text


def _rows() -> Iterator[str]:
    for name, hook in vars(hookspecs).items():
        if name.startswith(f"{hookspecs.PROJECT}_"):
            what, called = (" ".join(text.split()) for text in (inspect.getdoc(hook) or "").split("\n\n")[:2])
            [signature] = re.findall(r"def \w+(\(.*\) -> .*):", inspect.getsource(hook))
            what, called = (text.partition(" ")[2].removesuffix(".") for text in (what, called))
            yield f"| `{name}` | `{signature.replace(chr(34), '')}` | {what} | {called} |"


if __name__ == "__main__":
    PAGE.write_text(written())
