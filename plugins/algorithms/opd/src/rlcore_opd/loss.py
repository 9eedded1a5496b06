"""The reverse KL to a teacher, on tokens that the student sampled."""

import torch
from torch import Tensor

from rlcore import TEACHER_TOP_LOG_PROBS, Input, LossInputs, LossOutput, importance_ratio, where_live
from rlcore_opd.config import DistillConfig

SMALLEST = 1e-6
"""Least probability of the tokens that are not compared, as one: below it fp32 sums are noise."""


def sampled_kl(inputs: LossInputs) -> Tensor:
    """r · sg(log π_old - log π_teacher) of each token, [R]: its gradient is that of KL(π || π_teacher).

    The policy gradient whose advantage is the negative reverse KL of the sampled token
    (https://thinkingmachines.ai/blog/on-policy-distillation). r = π / π_old.
    """
    teacher_R = inputs.batch.per_token[Input.TEACHER_LOG_PROBS]
    gap_R = where_live(inputs.old_log_probs - teacher_R, inputs.mask)
    return importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask) * gap_R


def top_kl(student_RK: Tensor, teacher_RK: Tensor) -> Tensor:
    """KL(π || π_teacher) of the distribution over K tokens and one for all others, [R].

    Takes log-probs of the whole vocabulary's distributions. A lower bound of their KL, equal to it where
    K is the vocabulary; 0 where the two agree on the K tokens, and above 0 elsewhere. Exact gradient: all of
    a position's K tokens take part, whichever was sampled.
    """
    p_RK = student_RK.exp()
    rest_R = (1 - p_RK.sum(1)).clamp(min=SMALLEST)
    teacher_rest_R = (1 - teacher_RK.exp().sum(1)).clamp(min=SMALLEST)
    return (p_RK * (student_RK - teacher_RK)).sum(1) + rest_R * (rest_R.log() - teacher_rest_R.log())


class Distill:
    """On-policy distillation (https://arxiv.org/abs/2306.13649): reads no advantages."""

    def __init__(self, config: DistillConfig) -> None:
        self._top_k = config.top_k

    def __call__(self, inputs: LossInputs) -> LossOutput:
        if not self._top_k:
            return LossOutput(per_token=sampled_kl(inputs))
        student_RK = inputs.top_log_probs
        assert student_RK is not None, "core gives what the config asks for"
        teacher_RK = where_live(inputs.batch.per_token[TEACHER_TOP_LOG_PROBS], inputs.mask[:, None])
        kl_R = top_kl(student_RK, teacher_RK)
        with torch.no_grad():
            metrics = {"kl_teacher_top": kl_R.detach(), "top_mass": student_RK.exp().sum(1)}
        return LossOutput(per_token=kl_R, metrics=metrics)
