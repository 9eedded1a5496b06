"""The recipes: an advantage relative to the group, and a loss with a trust region of its own.

Learning rate and batch sizes belong to the model and the task, not to a recipe.
"""

from rlcore import Algorithm

RECIPES = (
    Algorithm(
        name="grpo",
        summary="group-relative policy optimization",
        paper="https://arxiv.org/abs/2402.03300",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "per_rollout"},
    ),
    Algorithm(
        name="dr_grpo",
        summary="GRPO without its biases: no standard deviation, a constant denominator",
        paper="https://arxiv.org/abs/2503.20783",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "constant"},
        tables={"advantage": {"std": False}},
        scales={"entropy_coef": 0.1},  # the advantages have the scale of the rewards
    ),
    Algorithm(
        name="dapo",
        summary="GRPO with a higher upper clip, token mean and no groups of equal rewards",
        paper="https://arxiv.org/abs/2503.14476",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": ["zero_std"]},
        settings={"normalizer": "per_token", "group_size": 16},
        tables={"loss": {"clip_high": 0.28}},
    ),
    Algorithm(
        name="pass_at_k",
        summary="train the chance that one of k responses is right",
        paper="https://arxiv.org/abs/2508.10751",
        parts={"advantage": "pass_at_k", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "per_token"},
    ),
    Algorithm(
        name="max_rl",
        summary="maximum likelihood of success: the rarer, the more it counts",
        paper="https://arxiv.org/abs/2602.02710",
        parts={"advantage": "max_rl", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "per_token"},
    ),
    Algorithm(
        name="dppo",
        summary="GRPO that bounds the divergence from the engine's policy, not the ratio",
        paper="https://arxiv.org/abs/2602.04879",
        parts={"advantage": "grpo", "loss": "dppo", "filter": []},
        settings={"normalizer": "per_rollout", "old_log_probs": "rollout"},
    ),
    Algorithm(
        name="kl_cov",
        summary="GRPO that penalizes the tokens which would make the policy certain",
        paper="https://arxiv.org/abs/2505.22617",
        parts={"advantage": "grpo", "loss": "kl_cov", "filter": []},
        settings={"normalizer": "per_token", "minibatches": 4},
    ),
    Algorithm(
        name="cispo",
        summary="clipped importance weights: each token keeps its gradient",
        paper="https://arxiv.org/abs/2506.13585",
        parts={"advantage": "grpo", "loss": "cispo", "filter": ["zero_std"]},
        settings={"normalizer": "per_token"},
    ),
    Algorithm(
        name="sapo",
        summary="GRPO with a soft gate in place of the clip",
        paper="https://arxiv.org/abs/2511.20347",
        parts={"advantage": "grpo", "loss": "sapo", "filter": []},
        settings={"normalizer": "per_rollout"},
    ),
    Algorithm(
        name="gspo",
        summary="GRPO with one clipped ratio for each sequence",
        paper="https://arxiv.org/abs/2507.18071",
        parts={"advantage": "grpo", "loss": "gspo", "filter": []},
        settings={"normalizer": "per_rollout"},
    ),
    Algorithm(
        name="luspo",
        summary="GSPO without its preference for short responses: a sum over the tokens of each",
        paper="https://arxiv.org/abs/2602.05261",
        parts={"advantage": "grpo", "loss": "gspo", "filter": []},
        settings={"normalizer": "constant"},
    ),
    Algorithm(
        name="gmpo",
        summary="GRPO with the geometric mean of the token ratios",
        paper="https://arxiv.org/abs/2507.20673",
        parts={"advantage": "grpo", "loss": "gmpo", "filter": []},
        settings={"normalizer": "per_rollout"},
    ),
    Algorithm(
        name="vespo",
        summary="policy gradient with a smooth weight of the whole sequence in place of the clip",
        paper="https://arxiv.org/abs/2602.10693",
        parts={"advantage": "grpo", "loss": "vespo", "filter": []},
        settings={"normalizer": "per_token"},
    ),
)
