"""Advantages by a critic."""

from rlcore import AdvantageOutput, Input, TrainBatch
from rlcore_ppo.config import GaeConfig
from rlcore_toolkit import gae


class Gae:
    """Generalized advantage estimation (https://arxiv.org/abs/1506.02438, equation 16) over the live tokens.

    Tokens that are not live (a tool wrote them) take no time step. The value after the last token is 0.
    """

    def __init__(self, config: GaeConfig) -> None:
        self._config = config

    def estimate(self, batch: TrainBatch) -> AdvantageOutput:
        """Advantages, and returns = advantages + values, float32 [R] each."""
        # in float64, so that the order of the sums does not show in the float32 result
        advantages_R, returns_R = gae(
            batch.per_token["rewards"].double(),
            batch.per_token[Input.VALUES].double(),
            batch.per_token["loss_mask"],
            batch.segments,
            len(batch),
            gamma=self._config.gamma,
            lam=self._config.lam,
        )
        return AdvantageOutput(advantages=advantages_R.float(), returns=returns_R.float())
