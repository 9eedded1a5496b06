"""The plain policy-gradient loss."""

from rlcore import Config, LossInputs, LossOutput
from rlcore_toolkit import policy_gradient


class Reinforce:
    """-A log p of each token: REINFORCE (https://doi.org/10.1007/BF00992696).

    Its gradient is that of the policy which sampled the tokens: with several mini-batches the later ones are
    off-policy, and nothing corrects for it.
    """

    def __init__(self, config: Config) -> None:
        del config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=policy_gradient(inputs.log_probs, inputs.advantages, inputs.mask))
