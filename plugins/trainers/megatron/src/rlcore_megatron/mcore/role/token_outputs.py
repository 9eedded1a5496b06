"""From the logits of a micro-batch to what is said of its response tokens."""

from megatron.core import parallel_state as mpu
from torch import Tensor

from rlcore import TokenOutputs
from rlcore_megatron.mcore.packs.narrowing import whole
from rlcore_megatron.mcore.packs.packing import Pack
from rlcore_toolkit import Logits, response_log_probs, vocab_parallel_top


def token_outputs(
    logits: Logits,
    part: Pack,
    *,
    vocab_size: int,
    temperature: float,
    entropy: bool,
    entropy_grad: bool = False,
    ids: Tensor | None = None,
) -> TokenOutputs:
    """Outputs of the n response tokens of `part`. `logits` [m, V/tp]: of this rank's m, or of one row.

    `ids` int64 [n, K]: the tokens of `TokenOutputs.chosen`.
    """
    count = part.targets.numel()
    mine = ids if ids is None or part.kept is None else ids[part.kept]
    log_probs, entropies, chosen = response_log_probs(
        logits,
        part.targets,
        mine,
        temperature=temperature,
        entropy=entropy,
        entropy_grad=entropy_grad,
        vocab_size=vocab_size,
        group=mpu.get_tensor_model_parallel_group(),
    )
    return TokenOutputs(
        log_probs=whole(log_probs[:count], part),
        entropy=None if entropies is None else whole(entropies[:count], part),
        chosen=None if chosen is None else whole(chosen[:count], part),
    )


def score_columns(
    logits: Logits,
    part: Pack,
    *,
    vocab_size: int,
    temperature: float,
    entropy: bool,
    top: int,
    ids: str | None,
) -> dict[str, Tensor]:
    """The columns of `Role.forward` for the micro-batch `part`."""
    columns: dict[str, Tensor] = {}
    chosen = part.batch.per_token[ids] if ids else None
    if top:
        group = mpu.get_tensor_model_parallel_group()
        mine = vocab_parallel_top(logits, top, vocab_size=vocab_size, group=group)[: part.targets.numel()]
        chosen = columns["top_ids"] = whole(mine, part)
    outputs = token_outputs(
        logits, part, vocab_size=vocab_size, temperature=temperature, entropy=entropy, ids=chosen
    )
    columns["log_probs"] = outputs.log_probs
    if outputs.entropy is not None:
        columns["entropy"] = outputs.entropy
    if outputs.chosen is not None:
        columns["top_log_probs"] = outputs.chosen
    return columns
