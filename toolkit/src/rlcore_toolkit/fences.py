"""`fenced_blocks`: the fenced blocks of a Markdown text, such as an answer with programs in it."""

import re

from markdown_it import MarkdownIt

_ITEM = re.compile(r"^[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]", re.MULTILINE)
_MOST_ITEMS = 1000
"""Items of lists in a text whose fences may stand in them; markdown-it takes 20 us for each."""

_LISTS = MarkdownIt("zero").enable(["fence", "code", "list", "blockquote"]).disable("inline")
"""Blocks alone: a tag such as `<answer>` before a fence begins no block of HTML."""

_PLAIN = MarkdownIt("zero").enable("fence").disable("inline")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The language, in lower case and perhaps empty, and the content of each block, in order.

    A block that isn't closed ends with the text.
    """
    parser = _LISTS if len(_ITEM.findall(text)) <= _MOST_ITEMS else _PLAIN
    fences = [token for token in parser.parse(text) if token.type == "fence"]
    return [(re.sub(r"^\W*(\w*).*", r"\1", token.info).casefold(), token.content) for token in fences]
