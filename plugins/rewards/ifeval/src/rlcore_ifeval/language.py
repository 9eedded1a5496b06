# ruff: noqa: RUF001 - letters of other scripts are what this is about
"""Which of the languages of IFEval a text is in: by its script, then by its letters or its commonest words.

A small classifier of its own, since the usual ones bring data that would have to be downloaded. A text of a
few words in a Latin script may be told apart by no word: then it counts as the language that was expected,
unless another one's words are there.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

_SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "DEVANAGARI": ("hi", "mr", "ne"),
    "BENGALI": ("bn",),
    "GUJARATI": ("gu",),
    "GURMUKHI": ("pa",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "KANNADA": ("kn",),
    "MALAYALAM": ("ml",),
    "THAI": ("th",),
    "HANGUL": ("ko",),
    "HEBREW": ("he",),
    "GREEK": ("el",),
    "HIRAGANA": ("ja",),
    "KATAKANA": ("ja",),
    "CJK": ("zh",),
    "ARABIC": ("ar", "fa", "ur"),
    "CYRILLIC": ("ru", "uk", "bg"),
    "LATIN": ("en", "es", "pt", "fr", "de", "it", "pl", "vi", "sw", "fi", "nl", "sv", "tr"),
}
"""The first word of a letter's Unicode name → the languages that are written so."""

_LETTERS: Mapping[str, str] = {
    "uk": "іїєґ",
    "ru": "ыэё",
    "bg": "ъщ",
    "fa": "پچژگ",
    "ur": "ٹڈڑںےہ",
    "vi": "ăđơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "pl": "łąęśżźćń",
    "de": "ßü",
    "es": "ñ¿¡",
    "pt": "ãõ",
    "tr": "ışğ",
    "sv": "å",
}
"""Letters that a language has and its neighbors of the same script have not, or seldom."""

_WORDS: Mapping[str, str] = {
    "en": "the of and to in is that it for was on are with as be this have from at by not you or an",
    "es": "el la de que y en los se del las un por con una su para es al lo como más pero no está",
    "pt": "o a de que e do da em um para com não uma os no se na por mais as dos como mas ao ele são é",
    "fr": "le la de et les des en un une du que est pour qui dans sur pas au avec ce il sont nous je vous",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es werden",
    "it": "di e il la che un a per è in una sono non del con si le della da come più anche ma gli nel lo",
    "pl": "i w na z się nie do to że jest o jak po od za dla przez ale są może być oraz tak tym",
    "vi": "và của là có không một những cho được các với trong người này để",
    "sw": "na ya wa ni kwa katika za la kuwa yake hii hiyo sana watu kama lakini pia huu mimi",
    "fi": "ja on ei se että oli hän ovat mutta joka myös kun niin tai ole kuin voi sen mitä tämä",
    "nl": "de het een en van ik te dat die in je niet zijn op aan met voor er maar om",
    "sv": "och att det som en på är av för med till den har inte om ett men var jag",
    "tr": "ve bir bu da de için çok ile gibi daha ne var ben o ama",
    "hi": "है हैं के की का में से को और यह नहीं पर भी था कि हो",
    "mr": "आहे आणि आहेत मध्ये च्या ते ही हा नाही साठी होते एक मी",
    "ne": "छ र को छन् हो गर्न पनि भएको लागि यो छैन हुन्छ गर्छ मा",
    "ar": "في من على أن إلى هذا التي الذي ما لا هو عن مع كان هذه",
    "fa": "و در به از که این را با است برای آن یک می های",
    "ur": "کے میں ہے کی اور سے کا یہ ہیں کو نہیں پر بھی",
    "ru": "и в не на что я он с как это по но они мы из для так же",
    "uk": "і в не на що я з як це та до але для від за він вони є",
    "bg": "и на да се не за от че това са с по в ще като си но",
}
"""Commonest words of each language that shares its script with others."""


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
