"""Settings of the rewards that functions are."""

from pydantic import Field

from rlcore import Json, RewardConfig


class SlimeConfig(RewardConfig):
    """Settings of a function with the parameters of slime's."""

    args: dict[str, Json] = Field(
        default_factory=dict,
        description="further attributes of its `args`, by slime's names: --reward.NAME.args.rm_url VALUE",
    )
