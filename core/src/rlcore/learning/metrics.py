"""The metrics of a training step."""

from collections.abc import Mapping, Sequence

from rlcore.api.trainer import StepResult

METRICS = {
    "train/loss": "mean loss of the mini-batches",
    "train/grad_norm": "mean gradient norm of the mini-batches, before clipping",
    "train/lr": "learning rate of the last optimizer step",
    "train/entropy": "mean entropy of the policy in nats, at the sampling temperature",
    "train/ppo_kl": "mean old minus new log-prob",
    "train/ppo_gap": "mean |old - new| log-prob",
    "train/fresh": "share of the tokens that the engine sampled with the weights before the update",
    "train/kl_engine": "mean |trainer - engine| log-prob of the fresh tokens, before the first optimizer "
    "step; with --old-log-probs rollout, before the update of each mini-batch",
    "train/kl_engine_max": "largest |trainer - engine| log-prob of the fresh tokens",
    "train/kl_engine_k3": "k3 estimate of KL(engine || trainer) on the fresh tokens",
    "train/kl_engine_comparable": "1; 0 where the engine's distribution is cut by top-p, top-k or min-p",
    "train/advantage_mean": "mean advantage",
    "train/advantage_std": "standard deviation of the advantages",
    "train/tokens": "tokens trained on",
    "train/samples": "samples in the batch",
    "train/updates": "optimizer steps; 0 where no token was left to train on",
    "time/old_log_probs_s": "seconds for the log-probs before the update (only where they are read)",
    "time/advantages_s": "seconds for gathering the batch and for the advantages",
    "time/update_s": "seconds for the optimizer steps",
}
"""The metrics that `Learner.update` returns for sampled responses with tokens to train on.

The loss adds `train/<name>` for its own. Means are over tokens. Without fresh tokens,
`train/kl_engine_comparable` is the only one of `train/kl_engine…`.
"""


ROLE_METRICS = {
    "train/kl_reference": "KL(policy || reference), by --kl-estimator",
    "train/router_balance": "balancing loss of the routers, summed over layers, before its coefficient; the "
    "number of layers with experts where all experts of each sample are chosen equally",
    "critic/router_balance": "the same of the critic",
    "train/kl_teacher": "mean old log-prob minus the teacher's: an estimate of KL(policy || teacher)",
    "critic/loss": "mean loss of the critic's mini-batches",
    "critic/grad_norm": "mean gradient norm of the critic's mini-batches, before clipping",
    "critic/lr": "learning rate of the critic's last optimizer step",
    "critic/explained_variance": "1 - Var(returns - values) / Var(returns), by the values before the update",
    "time/reference_log_probs_s": "seconds for the log-probs of the reference",
    "time/teacher_log_probs_s": "seconds for the log-probs of the teacher",
    "time/values_s": "seconds for the values of the critic",
}
"""Further metrics of a run with a reference, a teacher, a critic or a balancing loss."""

WEIGHTED = "weighted/"
"""Prefix of the metrics that are summed with the tokens' weights (`LossOutput.weighted`)."""


def core_metrics(role: str) -> frozenset[str]:
    """The metrics below `role/` that core computes for every loss: a loss cannot use their names."""
    names = [name for name in (*METRICS, *ROLE_METRICS) if name.startswith(f"{role}/")]
    return frozenset({"tokens", *(name.removeprefix(f"{role}/") for name in names)})  # tokens: what divides


def summary(results: Sequence[StepResult]) -> dict[str, float]:
    """Means over the optimizer steps, and over tokens for sums; means of the gap are over fresh tokens
    only.
    """
    sums = summed_metrics(results)
    fresh = sums.get("fresh", 0.0)
    gaps = {name: sums.pop(name) for name in ("kl_engine", "kl_engine_k3") if name in sums}
    return {
        "train/tokens": sums["tokens"],
        "train/updates": float(len(results)),
        **trainer_metrics("train", results),
        **token_means("train", sums, len(results)),
        **({f"train/{name}": value / fresh for name, value in gaps.items()} if fresh else {}),
    }


def token_means(role: str, sums: Mapping[str, float], steps: int) -> dict[str, float]:
    """`sums` divided by the number of tokens; by that of the steps where they have the tokens' weights."""
    tokens = sums["tokens"]
    return {
        f"{role}/{name.removeprefix(WEIGHTED)}": value / (steps if name.startswith(WEIGHTED) else tokens)
        for name, value in sums.items()
        if name != "tokens"
    }


def summed_metrics(results: Sequence[StepResult]) -> dict[str, float]:
    """The sums over tokens of all optimizer steps, added up."""
    sums: dict[str, float] = {}
    for result in results:
        for name, value in result.metrics.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def trainer_metrics(role: str, results: Sequence[StepResult]) -> dict[str, float]:
    """The last learning rate, and means over the steps of what the trainer says of each."""
    of_steps: dict[str, list[float]] = {}
    for result in results:
        metrics = {"loss": result.loss, "grad_norm": result.grad_norm, **result.extras}
        for name, value in metrics.items():
            of_steps.setdefault(f"{role}/{name}", []).append(value)
    means = {name: sum(values) / len(values) for name, values in of_steps.items()}
    return {**means, f"{role}/lr": results[-1].lr}
