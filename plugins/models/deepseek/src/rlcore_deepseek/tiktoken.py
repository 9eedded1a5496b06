"""Kimi's tokenizer out of its `tiktoken.model`, as a tokenizer.json, without the code that comes with it."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore import ModelError

PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How Kimi-K2 and Moonlight cut a text into pieces, which are encoded one by one."""
SPECIAL = 256
"""Ids behind those of the file, each of one special token."""


def ranks_of(file: Path) -> dict[bytes, int]:
    """Bytes of each token → its id, by which pairs are joined. ModelError where the file is another kind."""
    try:
        pairs = (line.split() for line in file.read_bytes().splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise ModelError(f"{file}: expected a token in base64 and its id in each line ({error}).") from error


def tokenizer_json(file: Path, added: Mapping[str, Mapping[str, Any]]) -> str:
    """The tokenizer.json of `file`. `added`: `added_tokens_decoder` of tokenizer_config.json.

    An id that it does not name is `<|reserved_token_ID|>`, as in Kimi's code.
    """
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers.decoders import ByteLevel as Bytes
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    ranks = ranks_of(file)
    texts = {token: _text(token) for token in ranks}
    vocabulary = {texts[token]: rank for token, rank in ranks.items()}
    merges = [(texts[first], texts[second]) for first, second in _merges(ranks)]
    # as in tiktoken, a piece that is a token is not encoded otherwise
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    cut = Split(Regex(PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([cut, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = Bytes()
    tokenizer.add_special_tokens(
        [
            AddedToken(
                added.get(str(number), {}).get("content", f"<|reserved_token_{number}|>"), normalized=False
            )
            for number in range(len(ranks), len(ranks) + SPECIAL)
        ]
    )
    return str(tokenizer.to_str())


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every pair of tokens that makes a token, in the order in which pairs are joined."""
    found = [
        (rank, ranks[token[:place]], token, place)
        for token, rank in ranks.items()
        for place in range(1, len(token))
        if token[:place] in ranks and token[place:] in ranks
    ]
    return [(token[:place], token[place:]) for *_, token, place in sorted(found)]


def _text(token: bytes) -> str:
    """The bytes as the letters that the tokenizers library writes for them."""
    return "".join(_LETTERS[byte] for byte in token)


def _letters() -> dict[int, str]:
    """GPT-2's: a printable byte stands for itself, the others for letters from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_LETTERS = _letters()
