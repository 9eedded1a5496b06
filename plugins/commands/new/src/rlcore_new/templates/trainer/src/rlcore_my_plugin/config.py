"""The settings, and what the trainer says that it can."""

from typing import ClassVar

from pydantic import Field
from rlcore import Ability, TrainerConfig


class MyPluginConfig(TrainerConfig):
    """Settings of the trainer `my_plugin`."""

    needs_bridge: ClassVar[bool] = False  # it trains whatever transformers loads
    abilities: ClassVar[frozenset[Ability]] = frozenset(  # rlcore refuses a run that asks for more
        {
            *(Ability.SCORERS, Ability.OWN_RANKS, Ability.REFRESH),
            *(Ability.SLEEP, Ability.TOP_TOKENS, Ability.MODEL_HOOKS),
        }
    )

    foreach: bool = Field(True, description="update all parameters at once: faster, with more memory")
