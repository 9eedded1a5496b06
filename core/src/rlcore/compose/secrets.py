"""Settings without their secrets, for run folders and trackers."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "(hidden)"

_SECRET = re.compile(
    r"(^|_)((api|access|auth|private|secret)_?key|key_id|token|passw(or)?d|secret|credentials?)$"
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+")


def without_secrets(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by dotted name, with secrets hidden.

    A text is a secret if its name ends in `token`, `api_key`, `password` or the like. In any URL, user,
    password and query are hidden: a query may hold a signature.
    """
    return {name: _shown(name, value) for name, value in flat.items()}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    if value in ("", None) or not isinstance(value, str):
        return value
    if _SECRET.search(name.rpartition(".")[2].lower().replace("-", "_")):
        return HIDDEN
    return _URL.sub(lambda url: _without_credentials(url.group()), value)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{HIDDEN if user else ''}{at}{host}"
    return urlunsplit(parts._replace(netloc=netloc, query=HIDDEN if parts.query else ""))
