"""Columns of the batch: how one is declared, those that cost something, and what a recipe trains on."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rlcore.api.errors import PluginError

Per = Literal["token", "sample", "input", "item"]
"""What one entry of a column belongs to: a response token, a sample, a token of prompt or response, or an
item of a sample, such as a patch of its images.
"""

Reach = Literal["all", "share", "policy"]
"""Who gets a column. `all`: every rank has that of the whole batch, and losses and estimators read it.

The others are for models, and stay with the samples that a rank trains on. `share`: every model reads them.
`policy`: the policy alone; no model on ranks of its own gets them.
"""

DType = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]
"""torch's names of dtypes."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The declaration of a column: what its entries are, and how it travels with its batch.

    >>> from rlcore import Column
    >>> pixels = Column(per="item", lengths="patches", dtype="float32", shape=(588,), reach="share")
    """

    per: Per
    lengths: str = ""
    """The per-sample column that says how many items each sample has, for a column of items. It may be 0."""
    dtype: DType | None = None
    """None: float32 for numbers with a fraction and for booleans, int64 for whole numbers."""
    shape: tuple[int, ...] | None = None
    """The dimensions of one entry, `()` for a number; None: those of the entries at hand."""
    padding: float | tuple[float, ...] = 0
    """The value of an entry that belongs to no token; a tuple fills the last dimension."""
    is_sliced: bool = False
    """A rank of context parallelism gets the entries of its own tokens, in place of all. Only for `input`."""
    reach: Reach = "all"

    def __post_init__(self) -> None:
        if bool(self.lengths) != (self.per == "item"):
            raise PluginError(f"{self}: a column of items, and no other, names its lengths.")
        if self.is_sliced and self.per != "input":
            raise PluginError(f"{self}: only a column of the input can be sliced with its tokens.")


ROUTED_EXPERTS = "routed_experts"
"""The column of the experts that the engine chose for each token, by layer of the model: the bytes of
little-endian int32 [tokens, layers, K] of each sample. What stands in a layer without experts means nothing.
"""
INDEXER_TOPK = "indexer_topk"
"""The column of the keys that the engine's sparse attention chose for each token: the bytes of each sample by
`rlcore_toolkit.packed_keys`.
"""
REPLAYS: Mapping[str, str] = {"replay_routing": ROUTED_EXPERTS, "replay_indexer": INDEXER_TOPK}
"""Setting → the column of the engine's choices, which the trainer takes over in place of its own. Columns of
items, bytes, for the tokens of a sample but the last, which the engine never reads.
"""


class Input(StrEnum):
    """A column that costs a forward pass or a generation. It is made only if a part's config `needs` it.

    For each token: `OLD_LOG_PROBS`, the policy's before the update; `OLD_ENTROPY`, of the policy's
    distribution there, in nats; `REFERENCE_LOG_PROBS`; `TEACHER_LOG_PROBS`; `VALUES`, the critic's value of
    the state before the token, before its update. For each sample: `GREEDY_REWARD`, of the greedy response to
    the prompt.
    """

    OLD_LOG_PROBS = "old_log_probs"
    OLD_ENTROPY = "old_entropy"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    TEACHER_LOG_PROBS = "teacher_log_probs"
    GREEDY_REWARD = "greedy_reward"
    VALUES = "values"


SAMPLE_INPUTS = frozenset({Input.TEACHER_LOG_PROBS, Input.GREEDY_REWARD})
"""The inputs that core makes from extras which it gives to the samples itself."""


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """The `count` likeliest tokens at each position of the response, according to the teacher or the student.

    The student is the policy before the update. A loss whose config asks for them finds two more columns in
    the batch, `TOP_IDS` int64 [R, count] and `TEACHER_TOP_LOG_PROBS` float32 [R, count], and the policy's
    log-probs of the same tokens in `LossInputs.top_log_probs`.
    """

    count: int
    of: Literal["teacher", "student"]


TOP_IDS = "top_ids"
TEACHER_TOP_LOG_PROBS = "teacher_top_log_probs"
TOP_COLUMNS = (TOP_IDS, TEACHER_TOP_LOG_PROBS)
"""Columns of a batch: the likeliest tokens at each place, and what the teacher says of them."""


class TrainsOn(StrEnum):
    """What a recipe trains on.

    `ROLLOUTS`: the policy's own responses, judged by rewards. `RESPONSES`, `PAIRS`: what the data give to
    each prompt, one response, or a chosen and a rejected one.
    """

    ROLLOUTS = "rollouts"
    RESPONSES = "given responses"
    PAIRS = "given pairs"

    @property
    def per_prompt(self) -> int:
        """How many responses the data give to each prompt."""
        return {"rollouts": 0, "given responses": 1, "given pairs": 2}[self.value]
