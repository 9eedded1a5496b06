"""Which prompts are held out: decided by content, so that one text is never on both sides."""

import json
from hashlib import blake2b

from rlcore.types import Messages


def content_hash(text: str | Messages, seed: int = 0) -> int:
    """64 bits of what is asked; the same for equal texts and for equal messages."""
    content = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False)
    digest = blake2b(content.encode(), digest_size=8, salt=seed.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def share(content: int) -> float:
    """Where a hash lies in [0, 1)."""
    return content / 2**64
