"""The heads of Qwen's sequence classifiers as they are on disk, for SGLang.

SGLang (0.5.23) gives the last layer of Qwen2ForSequenceClassification and Qwen3ForSequenceClassification a
bias. Checkpoints have none, so that it keeps the random values of its making, and shifts every score by up to
1/sqrt(hidden size). `site/` holds the two classes without it, in a package for SGLang's own
SGLANG_EXTERNAL_MODEL_PACKAGE.
"""

import os
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "site"
PACKAGE = "rlcore_sglang_heads"
VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE"


def environment(present: Mapping[str, str]) -> dict[str, str]:
    """Added to `present`, the server's environment beside the inherited one. A user's own package stands."""
    path = present.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    return {
        "PYTHONPATH": os.pathsep.join([str(SITE), *([path] if path else [])]),
        VARIABLE: os.environ.get(VARIABLE, PACKAGE),
    }
