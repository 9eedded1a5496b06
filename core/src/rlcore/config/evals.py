"""The settings of one evaluation, `[eval.NAME]`."""

from typing import Literal

from pydantic import Field

from rlcore.api.config import Config


class EvalConfig(Config):
    """How one set is evaluated. By default greedily, with one answer to each prompt."""

    samples: int = Field(1, ge=1, le=10_000, description="answers to each prompt")
    temperature: float = Field(0.0, ge=0, le=100, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of tokens of this probability")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0, lt=1, description="drop tokens below this share of the most probable one")
    max_tokens: int | None = Field(
        None, ge=1, description="a longer response is truncated; none: --max-response-tokens"
    )
    prompts: int | None = Field(
        None,
        ge=1,
        description="at most this many prompts; none: in a run as many as --eval-prompts, in rlcore eval all",
    )
    score_by: Literal["auto", "exact_match", "reward"] = Field(
        "auto", description="what an answer is judged by; auto: the reward, if there is one"
    )
    solved_at: float = Field(1.0, description="an answer with at least this score counts in pass@k")
