"""The negative log-likelihood."""

from rlcore import LossInputs, LossOutput
from rlcore_sft.config import SftConfig


class Sft:
    """-log π of each token; by the normalizer `per_token` it is the cross-entropy of the batch."""

    def __init__(self, config: SftConfig) -> None:
        del config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=-inputs.log_probs)
