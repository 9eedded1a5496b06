# ruff: noqa: RUF001 - the signs that look alike are what this module is about
r"""`latex`: an answer or label as people write it (`½`, `\$1,000`, `2 500`), as math-verify reads it."""

import re
import unicodedata

_SYMBOLS = {
    **dict.fromkeys("−﹣‒–", "-"),
    **dict.fromkeys("°º€£¥₹∠", ""),
    **dict.fromkeys("∕⁄", "/"),
    **{"×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "∞": r"\infty "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "∈": r"\in ", "∅": r"\emptyset "},
    **{"∪": r"\cup ", "∩": r"\cap ", "ℝ": r"\mathbb{R}", "π": r"\pi ", "α": r"\alpha ", "β": r"\beta "},
    **{"θ": r"\theta ", "φ": r"\phi ", "λ": r"\lambda "},
}
_TABLE = str.maketrans(_SYMBOLS)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_VULGAR = re.compile(r"(\d*)\s*([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒])")
_ROOT = re.compile(r"([√∛])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[a-zA-Z]))")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\^\s*\{?\s*\\degree\s*\}?")
_SPACE = re.compile(r"\\(?:quad|qquad)\b|\\[;:!]|~")
_GROUP = r"(?:\\,|,?\\!|\{,\}|,\\?\s?|\\?\s)"
_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP}\d{{3}})+(?![\d,])")
_MIXED = re.compile(
    r"([-+]?)\s*(\d+)(?:\s+|\s*\\[,;!]\s*|\s*(?=\\))"
    r"(?:(\d+)\s*/\s*(\d+)|\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?)"
)
_SCIENTIFIC = re.compile(r"(?<![\w.])([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d+)(?!\w)")
TEXT = re.compile(r"\\(?:text|textbf|mathrm|textit|mbox|operatorname)\s*\{([^{}]*)\}")
_JOINED = re.compile(r"\b(?:or|and|to|not|about|approximately|least|most|than|plus|minus)\b", re.IGNORECASE)
_WORD = re.compile(
    r"(?<![\\a-zA-Z])(?!(?:sin|cos|tan|log|exp|sqrt|frac)\b)"
    r"[a-zA-Z]{2,}\.?(?:\s+[a-zA-Z/]+)*(?:\^\{?\d\}?)?\s*$"
)


def latex(text: str) -> str:
    """`text` in LaTeX, without currency, degrees and the grouping of digits."""
    text = _VULGAR.sub(_vulgar, text)
    text = _ROOT.sub(_root, text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda found: "^{" + found[0].translate(_SUPERSCRIPTS) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE))
    text = _DEGREES.sub("", text.replace(r"\$", "").replace("$", ""))
    text = text.strip().strip("*`").strip()
    text = re.sub(r"(?:[,;:]|(?<!\.)\.|\\[,;! ])+$", "", text).strip()
    text = re.sub(r"^~(?=\s*\d)", r"\\sim ", text)
    text = re.sub(r"\\log_\{?e\}?(?![a-zA-Z])", r"\\ln ", text).replace(r"\varnothing", r"\emptyset")
    text = re.sub(r"^-\s+(?=[\d.\\])", "-", text)
    whole = _GROUPED.fullmatch(text.lstrip("+-").split(".")[0].rstrip("%\\ "))
    if whole and not re.search(r",\s", text):
        text = re.sub(rf"(?<=\d){_GROUP}(?=\d{{3}})", "", text)
    elif not re.search(r"[(\[{]", text.replace("{,}", "")) or "{,}" in text or r"\!" in text:
        text = re.sub(r"(?<=\d)(?:,?\\!|\{,\}|\\,)(?=\d{3})", "", text)
        text = re.sub(
            r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda found: found[0].replace(",", ""), text
        )
    text = _SPACE.sub(" ", text)
    mixed = _MIXED.fullmatch(text)
    if mixed:
        sign, units, *parts = mixed.groups()
        above, below = [part for part in parts if part]
        text = rf"{sign}\frac{{{int(units) * int(below) + int(above)}}}{{{below}}}" if int(below) else text
    return _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text).strip()


def without_unit(text: str) -> str:
    r"""`text` without the words behind a number: `5 \text{ cm}`, `5 apples`. Words that join numbers stay."""
    bare = re.sub(r"\^\s*\{?[23]\}?\s*$", "", text) if re.search(r"\}\s*\^\s*\{?[23]\}?\s*$", text) else text
    words = list(TEXT.finditer(bare))
    if words and words[-1].end() == len(bare.rstrip()) and words[-1].start():
        unit, rest = words[-1][1], bare[: words[-1].start()]
    else:
        plain = _WORD.search(text)
        if not plain or not plain.start():
            return text
        unit, rest = plain[0], text[: plain.start()]
    if not re.search(r"\d|\}\s*$", rest) or _JOINED.search(unit) or _JOINED.search(rest):
        return text
    return rest.strip().removesuffix("\\").strip()


def words(text: str) -> str | None:
    r"""What an answer in words says: `\text{Monday}`, `True`, `(B)`; None for a formula."""
    said = TEXT.sub(r"\1", text) if "\\" in text else text
    said = re.sub(r"\s+", " ", said).strip(" .")
    option = re.fullmatch(r"\(?([a-zA-Z])\)", said)
    if option:
        return option[1].casefold()
    marked = said != text.strip(" .") and re.fullmatch(r"[A-Za-z][A-Za-z ,'-]*", said)
    plain = re.fullmatch(r"(?:[A-Za-z]{4,}|yes|no|odd|both)(?:[ -][A-Za-z]+)*", said, re.IGNORECASE)
    return said.casefold() if marked or plain else None


def _vulgar(found: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", found[2]).split("⁄")
    value = int(found[1] or 0) * int(below) + int(above)
    return rf"\frac{{{value}}}{{{below}}}"


def _root(found: re.Match[str]) -> str:
    inside = next(part for part in found.groups()[1:] if part is not None)
    return rf"\sqrt{'[3]' if found[1] == '∛' else ''}{{{inside}}}"
