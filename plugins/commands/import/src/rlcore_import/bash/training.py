"""Which command of a bash script starts the training, and what is wrong where it is another one."""

from __future__ import annotations

import re

ENTRY = re.compile(r"\S*\btrain\w*\.py")
"""The training program."""

STARTS = re.compile(r"\bpython\S*\s(?:\S+\s+)*?\S*\btrain\w*\.py")
"""The same within a text."""

LOOKS_AT = {
    *("[", "[[", "test", "cat", "head", "tail", "grep", "sed", "awk", "diff", "wc", "echo", "printf", "git"),
    *("cp", "mv", "rm", "ln", "ls", "chmod", "touch", "tar", "kill", "pgrep", "pkill", "ps", "exit", "trap"),
}
"""Programs that may name the training program, and do not start it."""

_LOOKS_FOR = {"grep", "kill", "pgrep", "pkill"}
"""These also behind `sudo` or `docker exec`."""


def entry(fields: list[str]) -> int | None:
    """Where the training program is named by a command that starts it."""
    at = next((at for at, word in enumerate(fields) if ENTRY.fullmatch(word) and "=" not in word), None)
    if at is None or fields[0] in LOOKS_AT or _LOOKS_FOR.intersection(fields[:at]):
        return None
    return at


def flags_of(words: list[str]) -> list[str]:
    """`words` from the first flag on; behind ` -- ` if it is there."""
    words = words[words.index("--") + 1 :] if "--" in words else words
    first = next((at for at, word in enumerate(words) if re.match(r"--[A-Za-z]", word)), len(words))
    return words[first:]


def second_command(second: str, first: str) -> str:
    return (
        f"{second}: found a second training command (the first is in {first}), expected one; make one script "
        "for each, or comment the other out."
    )


def within_text(where: str) -> str:
    return (
        f"{where}: found the training command inside a quoted text, expected it as a command of its own; "
        "write it on a line without the quotes around it."
    )
