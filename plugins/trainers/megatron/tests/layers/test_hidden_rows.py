"""Log-probs from hidden states, whose logits never exist as a whole: the same values and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from megatron_ranks import QWEN
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore import ModelSpec, OptimizerSettings
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role import rows
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, policy_loss, random_batch
from rlcore_toolkit import HiddenRows, Logits, vocab_parallel_log_probs, vocab_parallel_top

T, V, PADDED, WIDTH, CHUNK = 61, 500, 512, 16, 8

# --- the functions -------------------------------------------------------------------------------------


def _leaves(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Hidden states [T, WIDTH] and matrix [PADDED, WIDTH]; rows of padding would win every softmax."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(T, WIDTH, generator=draw)
    matrix = torch.randn(PADDED, WIDTH, generator=draw)
    matrix[V:] = 1e3
    return hidden.to(dtype).requires_grad_(), matrix.to(dtype).requires_grad_()


def _loss(logits: Logits, *, entropy_grad: bool = True, chunk: int | None = CHUNK) -> Tensor:
    """A weighted sum of log-probs of three tokens of each row, and of entropies."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (T, 3), generator=draw)
    log_probs, entropy = vocab_parallel_log_probs(
        logits, ids, temperature=0.7, entropy=True, entropy_grad=entropy_grad, vocab_size=V, chunk=chunk
    )
    assert entropy is not None
    assert entropy.requires_grad is entropy_grad
    entropy_weight = torch.randn(T, generator=draw)
    return (log_probs * torch.randn(T, 3, generator=draw)).sum() + (entropy * entropy_weight).sum()


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _soft_cap(products: Tensor) -> Tensor:
    return 3 * torch.tanh(products / 3)


@pytest.mark.parametrize(("entropy_grad", "after"), [(False, None), (True, None), (True, _soft_cap)])
def test_gradients_are_those_of_whole_logits(
    entropy_grad: bool, after: Callable[[Tensor], Tensor] | None
) -> None:
    hidden, matrix = _leaves()
    logits = hidden @ matrix.t()
    whole = _loss(logits if after is None else after(logits), entropy_grad=entropy_grad)
    expected = torch.autograd.grad(whole, (hidden, matrix))
    for chunk in (1, CHUNK, T, None):
        rows = HiddenRows(hidden=hidden, matrix=matrix, after=after)
        total = _loss(rows, entropy_grad=entropy_grad, chunk=chunk)
        assert total.item() == pytest.approx(whole.item(), rel=1e-5)
        found = torch.autograd.grad(total, (hidden, matrix))
        for mine, theirs in zip(found, expected, strict=True):
            assert _relative(mine, theirs) <= 1e-6
        assert not found[1][V:].any(), "padding has no gradient"


def test_likeliest_tokens_are_those_of_whole_logits() -> None:
    hidden, matrix = _leaves()
    found = vocab_parallel_top(HiddenRows(hidden=hidden, matrix=matrix), 5, vocab_size=V)
    assert torch.equal(found, vocab_parallel_top(hidden @ matrix.t(), 5, vocab_size=V))


def test_chunks_in_bf16_are_added_up_in_fp32() -> None:
    """The matrix's gradient is as near the exact one as that of one product over all rows."""
    hidden, matrix = _leaves(torch.bfloat16)
    hidden_32, matrix_32 = hidden.detach().float(), matrix.detach().float().requires_grad_()
    exact = torch.autograd.grad(_loss(hidden_32 @ matrix_32.t()), matrix_32)[0]
    once = torch.autograd.grad(_loss(hidden @ matrix.t()), matrix)[0]
    chunked = torch.autograd.grad(_loss(HiddenRows(hidden=hidden, matrix=matrix), chunk=1), matrix)[0]
    assert chunked.dtype == torch.bfloat16
    assert _relative(chunked, exact) <= 1.01 * _relative(once, exact)


class _Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch does not type it
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_no_tensor_grows_with_tokens_times_vocabulary() -> None:
    hidden, matrix = _leaves()
    with _Largest() as largest:
        _loss(HiddenRows(hidden=hidden, matrix=matrix)).backward()
    assert largest.elements == PADDED * WIDTH, "the gradient of the matrix"
    with _Largest() as largest:
        _loss(hidden.detach() @ matrix.t()).backward()
    assert largest.elements == T * PADDED


# --- roles ---------------------------------------------------------------------------------------------

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.5)
SEQUENCE = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
CASES: dict[str, tuple[int, dict[str, Any], bool]] = {
    "tensor-tied": (2, {"tensor_model_parallel_size": 2}, True),
    "sequence": (2, SEQUENCE, False),
    "pipeline-tied": (2, {"pipeline_model_parallel_size": 2}, True),
    "tensor": (2, {"tensor_model_parallel_size": 2}, False),
    "tied": (1, {}, True),
}
"""Ranks, layout, and whether input and output share a weight."""


def _run(rank: int, world: int, port: int, path: str, megatron: dict[str, Any], most: int) -> Any:
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    vars(rows)["MOST_ON_HOST"] = most  # a name that rows has of the toolkit
    role = Role(ModelSpec(path=path, bridge=QWEN, fields=megatron), SETTINGS)
    widths: set[int] = set()
    for name, module in role.built.chunks[0].named_modules():
        if name.endswith("output_layer"):
            module.register_forward_hook(lambda _, args, out: widths.add(out[0].shape[-1]))
    batch = random_batch(9)
    options: dict[str, Any] = {"temperature": 0.8, "tokens_per_rank": 30, "entropy": True}
    scores = role.forward(batch, **options, top=3)
    steps = [role.train(batch, policy_loss, **options, entropy_grad=True) for _ in range(2)]
    weights = {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}
    parallel.stop()
    return {name: column.tolist() for name, column in scores.items()}, steps, weights, widths


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    # 99 tokens over two ranks: the vocabulary is padded
    folder = tmp_path_factory.mktemp("models")
    return {tied: str(make_qwen3(folder / str(tied), tie_word_embeddings=tied)) for tied in (False, True)}


@pytest.fixture(scope="module")
def whole(models: dict[bool, str]) -> dict[bool, Any]:
    """One rank, whole logits."""
    return {tied: run_ranks(_run, 1, path, {}, 1 << 40)[0] for tied, path in models.items()}


@pytest.mark.grid
@pytest.mark.parametrize("case", list(CASES))
def test_roles_agree_with_one_that_makes_whole_logits(
    models: dict[bool, str], whole: dict[bool, Any], case: str
) -> None:
    ranks, megatron, tied = CASES[case]
    scores, steps, weights, widths = whole[tied]
    assert widths == {99}
    results = run_ranks(_run, ranks, models[tied], megatron, 0)
    assert set().union(*(result[3] for result in results)) == {64}, "hidden states leave the output layer"
    for found, stepped, trained, _ in results:
        assert found["top_ids"] == scores["top_ids"]
        for name in ("log_probs", "entropy", "top_log_probs"):
            torch.testing.assert_close(
                torch.tensor(found[name]), torch.tensor(scores[name]), atol=1e-5, rtol=0
            )
        for mine, theirs in zip(stepped, steps, strict=True):
            assert mine.loss == pytest.approx(theirs.loss, rel=1e-4, abs=1e-6)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
            assert mine.metrics == pytest.approx(theirs.metrics)
        torch.testing.assert_close(trained, weights, atol=1e-4, rtol=0)
