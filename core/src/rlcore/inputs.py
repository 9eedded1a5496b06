"""What a part may ask for beside the samples themselves; each input is a column of the batch."""

from enum import StrEnum


class Input(StrEnum):
    """A per-token column that costs a forward pass; it is made only where a part's config `needs` it.

    `OLD_LOG_PROBS`: the policy's before the update. `REFERENCE_LOG_PROBS`: the frozen reference's. `VALUES`:
    the critic's, before its update, each of the state before the token.
    """

    OLD_LOG_PROBS = "old_log_probs"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    VALUES = "values"
