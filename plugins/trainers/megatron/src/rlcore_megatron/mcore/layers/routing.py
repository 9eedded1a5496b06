"""How tokens choose experts, and with which weights: the rules of Qwen3-MoE, GLM-4.5 and DeepSeek-V3."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Routing:
    """`top_k` experts a token, by the `score` of the router's logits.

    `biased`: a bias for each expert takes part in the choice, not in the weights
    (https://arxiv.org/abs/2408.15664). `groups`, `top_groups`: only the experts of the `top_groups` best of
    `groups` equal groups are eligible; a group is as good as its two best experts together (DeepSeek-V3,
    https://arxiv.org/abs/2412.19437, section 2.1.2). `normalize`: the weights of a token are divided by their
    sum; with softmax, that is the softmax over the chosen logits alone (gpt-oss). `scale` multiplies them.
    `logit_bias`: the router's linear layer has a bias.
    Shape suffixes: T tokens, E experts, K experts a token, G groups.
    """

    top_k: int
    score: Literal["softmax", "sigmoid"]
    normalize: bool
    scale: float = 1.0
    biased: bool = False
    groups: int = 1
    top_groups: int = 1
    logit_bias: bool = False

    def scores(self, logits_TE: Tensor) -> Tensor:
        """fp32 [T, E]."""
        logits_TE = logits_TE.float()
        return logits_TE.softmax(-1) if self.score == "softmax" else logits_TE.sigmoid()

    @torch.no_grad()
    def choose(self, scores_TE: Tensor, bias_E: Tensor | None) -> Tensor:
        """int64 [T, K]: the experts of each token."""
        # The bias steers which experts have work; the weights below are of the scores without it.
        preference_TE = scores_TE if bias_E is None else scores_TE + bias_E
        if self.top_groups < self.groups:
            preference_TE = self._of_best_groups(preference_TE)
        return preference_TE.topk(self.top_k, dim=-1).indices

    def weigh(self, scores_TE: Tensor, experts_TK: Tensor) -> Tensor:
        """fp32 [T, K]: the weights of the chosen experts, with gradient."""
        weights_TK = scores_TE.gather(1, experts_TK)
        if self.normalize:
            # sigmoids may all be 0; the summand is the one of the published models
            floor = 1e-20 if self.score == "sigmoid" else 0.0
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + floor)
        return weights_TK * self.scale

    def _of_best_groups(self, preference_TE: Tensor) -> Tensor:
        # score of a group = sum of its two best experts; those of all other groups can't be chosen
        members_TGM = preference_TE.view(len(preference_TE), self.groups, -1)
        best_TG = members_TGM.topk(2, dim=-1).values.sum(-1).topk(self.top_groups, dim=-1).indices
        out_TG = torch.ones_like(members_TGM[..., 0], dtype=torch.bool).scatter(1, best_TG, False)
        return members_TGM.masked_fill(out_TG[..., None], -torch.inf).flatten(1)
