"""Where each token of a text stands in it."""

from collections.abc import Sequence

from rlcore import Tokenizer

MOST_BYTES = 4
"""The most bytes of a character in UTF-8, each of which may be a token."""


def token_spans(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where the text of each token stands in the text of all: from this character, to that.

    The text is that without special tokens, which have none. Tokens that are parts of one character have all
    of them its place. Costs two decodings of a few tokens for each token.
    """
    spans: list[tuple[int, int]] = []
    begin, first, read = 0, 0, 0
    for place in range(len(token_ids)):
        before = tokenizer.decode(token_ids[first:read], skip_special_tokens=True)
        text = tokenizer.decode(token_ids[first : place + 1], skip_special_tokens=True)
        is_last = place + 1 == len(token_ids)
        if text.endswith("\ufffd") and not is_last and place - read < MOST_BYTES - 1:
            continue  # the rest of a character is to come
        end = begin + len(text) - len(before)
        spans += [(begin, end)] * (place + 1 - read)
        if end > begin:  # some tokenizers drop a space at the beginning: what is decoded begins with text
            first = read
        begin, read = end, place + 1
    return spans
