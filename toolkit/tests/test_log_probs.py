"""Log-probabilities and entropy against float64 log_softmax, and their exact gradients."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rlcore_testing.ranks import run_ranks
from rlcore_toolkit import log_probs, vocab_parallel_log_probs, vocab_parallel_top

T, V, PADDED = 37, 50, 64


def _inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(T, PADDED, generator=generator) * 3
    logits[:, V:] = 1e4  # padding columns would win every softmax
    logits[0, 3] = 80.0
    targets = torch.randint(0, V, (T,), generator=generator)
    targets[0] = 3
    return logits, targets, torch.randn(T, generator=generator), torch.randn(T, generator=generator)


def _reference(temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    logits, targets, weight, entropy_weight = _inputs()
    full = logits.double().requires_grad_()
    log_p = torch.log_softmax(full[:, :V] / temperature, -1)
    log_probs = log_p.gather(1, targets[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    total = (log_probs * weight).sum() + ((entropy * entropy_weight).sum() if with_entropy else 0.0)
    total.backward()
    assert full.grad is not None
    return log_probs.detach(), entropy.detach(), full.grad


def _check(rank: int, tp: int, group: dist.ProcessGroup | None) -> None:
    logits, targets, weight, entropy_weight = _inputs()
    width = PADDED // tp
    part = slice(rank * width, (rank + 1) * width)
    for temperature in (1.0, 0.7):
        for entropy_grad in (False, True):
            expected, expected_entropy, expected_grad = _reference(temperature, entropy_grad)
            mine = logits[:, part].clone().requires_grad_()
            log_probs, entropy = vocab_parallel_log_probs(
                mine,
                targets,
                temperature=temperature,
                entropy=True,
                entropy_grad=entropy_grad,
                vocab_size=V,
                chunk=8,
                group=group,
            )
            assert entropy is not None
            assert entropy.requires_grad is entropy_grad
            torch.testing.assert_close(log_probs.double(), expected, atol=2e-5, rtol=1e-5)
            torch.testing.assert_close(entropy.double(), expected_entropy, atol=2e-5, rtol=1e-5)
            total = (log_probs * weight).sum()
            (total + (entropy * entropy_weight).sum() if entropy_grad else total).backward()
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.double(), expected_grad[:, part], atol=2e-6, rtol=1e-4)


def _check_several(rank: int, tp: int, group: dist.ProcessGroup | None) -> None:
    """The likeliest tokens of each row, their log-probs, and the gradients of all of them at once."""
    logits, targets, *_ = _inputs()
    width, k = PADDED // tp, 7
    mine = logits[:, rank * width : (rank + 1) * width].clone().requires_grad_()
    full = logits.double().requires_grad_()
    log_p = torch.log_softmax(full[:, :V] / 0.7, -1)
    top = vocab_parallel_top(mine, k, vocab_size=V, group=group)
    assert torch.equal(top, log_p.topk(k, 1).indices)
    ids = torch.cat([targets[:, None], top], 1)
    weight = torch.randn(T, k + 1, generator=torch.Generator().manual_seed(1))
    log_probs, _ = vocab_parallel_log_probs(mine, ids, temperature=0.7, vocab_size=V, chunk=8, group=group)
    torch.testing.assert_close(log_probs.double(), log_p.gather(1, ids), atol=2e-5, rtol=1e-5)
    alone, _ = vocab_parallel_log_probs(mine, targets, temperature=0.7, vocab_size=V, chunk=8, group=group)
    assert torch.equal(alone, log_probs[:, 0])
    (log_probs * weight).sum().backward()
    (log_p.gather(1, ids) * weight).sum().backward()
    assert mine.grad is not None
    assert full.grad is not None
    expected = full.grad[:, rank * width : (rank + 1) * width]
    torch.testing.assert_close(mine.grad.double(), expected, atol=5e-6, rtol=1e-4)
    if group is None:
        whole = vocab_parallel_top(mine, V, vocab_size=V)
        assert torch.equal(whole.sort(1).values, torch.arange(V).expand(T, V))


def test_one_rank_matches_float64() -> None:
    _check(0, 1, None)
    _check_several(0, 1, None)


def _two_ranks(rank: int, world: int, port: int) -> bool:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    _check(rank, world, dist.group.WORLD)
    _check_several(rank, world, dist.group.WORLD)
    _check_slice_of_padding(rank)
    dist.destroy_process_group()
    return True


def _check_slice_of_padding(rank: int) -> None:
    """A rank whose whole slice is padding takes no part."""
    logits, targets, *_ = _inputs()
    mine = logits[:, :32].clone() if rank == 0 else torch.full((T, 32), 1e4)
    low = targets % 32
    log_probs, entropy = vocab_parallel_log_probs(
        mine, low, entropy=True, vocab_size=32, group=dist.group.WORLD
    )
    log_p = torch.log_softmax(logits[:, :32].double(), -1)
    torch.testing.assert_close(log_probs.double(), log_p.gather(1, low[:, None])[:, 0], atol=2e-5, rtol=1e-5)
    assert entropy is not None
    torch.testing.assert_close(entropy.double(), -(log_p.exp() * log_p).sum(-1), atol=2e-5, rtol=1e-5)
    top = vocab_parallel_top(mine, 5, vocab_size=32, group=dist.group.WORLD)
    assert torch.equal(top, log_p.topk(5, 1).indices)


def test_two_tensor_parallel_ranks_match_float64() -> None:
    assert run_ranks(_two_ranks, 2) == [True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_are_fp32_and_gradients_keep_the_dtype(dtype: torch.dtype) -> None:
    logits, targets, *_ = _inputs()
    mine = logits[:, :V].to(dtype).requires_grad_()
    log_probs, entropy = vocab_parallel_log_probs(mine, targets)
    assert log_probs.dtype == torch.float32
    assert entropy is None
    log_probs.sum().backward()
    assert mine.grad is not None
    assert mine.grad.dtype == dtype
    expected = torch.log_softmax(mine.detach().double(), -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(log_probs.detach().double(), expected, atol=2e-5, rtol=1e-5)


def test_no_rows_give_no_values() -> None:
    logits = torch.empty(0, V, requires_grad=True)
    log_probs, _ = vocab_parallel_log_probs(logits, torch.empty(0, dtype=torch.int64), entropy=True)
    assert log_probs.shape == (0,)
    log_probs.sum().backward()


@pytest.mark.parametrize("elements", [1, 1 << 22])
def test_a_product_is_added_part_by_part(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_probs, "_CHUNK_ELEMENTS", elements)
    a, b = torch.randn(9, 5).bfloat16(), torch.randn(5, 3).bfloat16()
    out = torch.ones(9, 3)
    log_probs._add_product(out, a, b)
    torch.testing.assert_close(out, 1 + a.float() @ b.float(), atol=0.02, rtol=0.01)
