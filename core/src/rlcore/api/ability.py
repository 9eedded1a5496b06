"""What a trainer can beyond the policy on one rank, which every trainer trains, saves and publishes."""

from enum import StrEnum


class Ability(StrEnum):
    """A trainer's config lists in `abilities` what it has. rlcore refuses a run that asks for another one.

    `RANKS`: several ranks, for the policy or a role. `VALUES`, `SCORERS`: models of these kinds.
    `OWN_RANKS`: a worker that holds one of these and no policy; there a scorer takes over the policy by
    `load`. `SWAPPED`: `RoleSpec.is_swapped`. `REFRESH`: a scorer takes over the policy during a run, by
    `copy_weights` or `load`. `SLEEP`: its models leave the device (`Sleeper`). `ROUTING_REPLAY`,
    `INDEXER_REPLAY`: `rlcore.ROUTED_EXPERTS` and `rlcore.INDEXER_TOPK` in `RoleSpec.replayed`.
    `TOP_TOKENS`: log-probs of several tokens at each position (`top` and `chosen`). `MODEL_HOOKS`:
    `RoleSpec.hooks`. `OWN_WEIGHTS`: weights in a form of its own, so it is a `rlcore.ConvertingTrainer`.
    `ADAPTERS`: `rlcore.AdapterSpec` as `RoleSpec.overlay`, so it is a `rlcore.AdaptingTrainer`. `POLICIES`:
    further roles of `ModelKind.POLICY`, each an overlay of its own over the policy's model.
    """

    RANKS = "ranks"
    VALUES = "values"
    SCORERS = "scorers"
    OWN_RANKS = "own_ranks"
    SWAPPED = "swapped"
    REFRESH = "refresh"
    SLEEP = "sleep"
    ROUTING_REPLAY = "routing_replay"
    INDEXER_REPLAY = "indexer_replay"
    TOP_TOKENS = "top_tokens"
    MODEL_HOOKS = "model_hooks"
    OWN_WEIGHTS = "own_weights"
    ADAPTERS = "adapters"
    POLICIES = "policies"
