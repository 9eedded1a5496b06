"""Which of the languages of IFEval a text is in: by its script, then by its letters or its commonest words.

A small classifier of its own, since the usual ones bring data that would have to be downloaded. A text of a
few words in a Latin script may be told apart by no word: then it counts as the language that was expected,
unless another one's words are there.
"""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources

_TABLES = tomllib.loads((resources.files("rlcore_ifeval") / "languages.toml").read_text(encoding="utf-8"))
_SCRIPTS: Mapping[str, Sequence[str]] = _TABLES["scripts"]
_LETTERS: Mapping[str, str] = _TABLES["letters"]
_WORDS: Mapping[str, str] = _TABLES["words"]


def language_of(text: str, expected: str) -> str:
    """The ISO 639-1 code of the language of `text`; `expected` where nothing tells it from its neighbors.

    `ValueError` where `expected` is none of the known languages.
    """
    if not any(expected in languages for languages in _SCRIPTS.values()):
        raise ValueError(f"the language {expected!r} is none of those that this reward knows")
    candidates = _SCRIPTS.get(_script(text), ())
    if len(candidates) < 2:
        return candidates[0] if candidates else ""
    words = Counter(re.findall(r"[^\W\d_]+[\u0900-\u097f]*", text.lower()))
    letters = Counter(text.lower())
    signs = {
        language: sum(words[word] for word in _WORDS.get(language, "").split())
        + 2 * sum(letters[letter] for letter in _LETTERS.get(language, ""))
        for language in candidates
    }
    best = max(signs.values())
    return expected if signs.get(expected) == best else max(signs, key=lambda language: signs[language])


def _script(text: str) -> str:
    """The script of most letters; kana among Chinese characters make a text Japanese."""
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
    kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
    if kana and kana * 10 > scripts["CJK"]:
        return "HIRAGANA"
    return scripts.most_common(1)[0][0] if scripts else ""
