"""The page's files, and the one file that is all of them."""

import json
from collections.abc import Mapping
from importlib import resources

from rlcore import Json

PLOTLY = "plotly.min.js"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
}
_SCRIPTS = ("common.js", "runs.js", "curves.js", "samples.js", "timeline.js", "tables.js", "app.js")


def files() -> dict[str, bytes]:
    """Name → content of everything that the page loads."""
    folder = resources.files("rlcore_view") / "page"
    own = ("index.html", "style.css", *_SCRIPTS)
    plotly = resources.files("plotly") / "package_data" / PLOTLY
    return {name: (folder / name).read_bytes() for name in own} | {PLOTLY: plotly.read_bytes()}


def one_file(data: Mapping[str, Json]) -> str:
    """The page with all that it loads, and `data`: what it would ask for, by path."""
    texts = {name: content.decode() for name, content in files().items()}
    page = texts["index.html"]
    style = f"<style>{texts['style.css']}</style>"
    page = _replaced(page, '<link rel="stylesheet" href="style.css">', style)
    for name in (PLOTLY, *_SCRIPTS):
        page = _replaced(page, f'<script src="{name}"></script>', f"<script>{_safe(texts[name])}</script>")
    # in a script of another type, whose text is no program
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return _replaced(
        page,
        '<script id="data" type="application/json"></script>',
        f'<script id="data" type="application/json">{text}</script>',
    )


def _replaced(page: str, old: str, new: str) -> str:
    assert page.count(old) == 1, f"the page has {old} once"
    return page.replace(old, new)


def _safe(script: str) -> str:
    """A script that no text of its own ends."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
