"""What the scheduler asks of a model: rows of sequences, each with its own cache of keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class PromptTokens:
    """Tokens to take in.

    `longest`: tokens that a row may have in the end, these included. `copies`: rows that continue from them.
    `score_from`: see `Decoder.prefill`. `adapter`: of the policy that reads them.
    """

    tokens: Sequence[int]
    longest: int
    copies: int = 1
    score_from: int | None = None
    adapter: str = ""


class Decoder(Protocol):
    """Rows of sequences under generation. Shapes: `B` rows, `P` prompts, `V` vocabulary.

    All methods are called by one thread, in inference mode.
    """

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        """Run each prompt once and append its `copies` rows, in order, behind the rows that there are.

        Returns the logits after each prompt [P, V], where the model is, and for a prompt with `score_from` s
        the log-probs of its tokens s+1, s+2, … (log_softmax of the logits in fp32, no temperature), else
        None.
        """

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Feed one token to each row; `lengths` is how many it holds already. Both are on the CPU.

        Returns logits [B, V], where the model is.
        """

    def keep(self, order: Sequence[int]) -> None:
        """Keep some rows: row j becomes what row `order[j]` was."""

    def refresh(self) -> None:
        """Take in parameters that were changed in place."""

    def clear(self) -> None:
        """Drop all rows and the memory that they held."""
