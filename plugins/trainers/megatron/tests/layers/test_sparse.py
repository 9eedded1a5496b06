"""Sparse attention over packs, against one token after another."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.layers.sparse import attend, attention_shares, choose, index_divergence
from rlcore_megatron.mcore.packs.sequences import Sequences
from rlcore_toolkit import Piece

TOP, SCALE = 3, 0.4
WHOLE: Sequence[Piece] = [(0, 9, 0, 0), (9, 2, 0, 0), (11, 9, 0, 0)]
TREE: Sequence[Piece] = [(0, 4, 0, 0), (4, 2, 0, 4), (6, 5, 0, 4), (11, 1, 0, 4), (12, 8, 0, 0)]


def pack_of(pieces: Sequence[Piece]) -> Sequences:
    return Sequences(torch.tensor([0, 20], dtype=torch.int32), 20, 20, tuple(pieces))


def seen(pieces: Sequence[Piece], place: int) -> list[int]:
    """The places of the tokens up to `place` in its sequence."""
    start, _, before, count = next(piece for piece in pieces if piece[0] <= place < piece[0] + piece[1])
    return [*range(before, before + count), *range(start, place + 1)]


def token_by_token(inputs: Sequence[Tensor], pieces: Sequence[Piece]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The paper's equations: values, the divergence of the index, and the positions chosen."""
    iq, ik, w, q, k, v = inputs
    out, divergences, chosen = [], [], []
    for t in range(len(q)):
        keys = torch.tensor(seen(pieces, t))
        scores = w[t].float() @ (iq[t].float() @ ik[keys].float().T * iq.shape[-1] ** -0.5).relu()
        best = scores.topk(min(TOP, len(keys))).indices.sort().values
        shares = (torch.einsum("hd,shd->hs", q[t], k[keys[best]]) * SCALE).float().softmax(-1)
        out.append(torch.einsum("hs,shv->hv", shares.to(v.dtype), v[keys[best]]))
        target = shares.detach().mean(0)
        divergences.append(functional.kl_div(scores[best].log_softmax(-1), target, reduction="sum"))
        chosen.append(best)
    return torch.stack(out), torch.stack(divergences), chosen


def tensors(dtype: torch.dtype) -> list[Tensor]:
    """Of the index queries, keys and weights; of the attention queries, keys and values."""
    torch.manual_seed(0)
    shapes = ((20, 8, 6), (20, 6), (20, 8), (20, 2, 10), (20, 2, 10), (20, 2, 7))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("pieces", [WHOLE, TREE])
@pytest.mark.parametrize("elements", [2**26, 40], ids=["at once", "sliced"])
def test_values_and_gradients_are_those_of_each_token_alone(
    monkeypatch: pytest.MonkeyPatch, pieces: Sequence[Piece], dtype: torch.dtype, bound: float, elements: int
) -> None:
    monkeypatch.setattr("rlcore_megatron.mcore.layers.sparse._ELEMENTS", elements)
    inputs, pack = tensors(dtype), pack_of(pieces)
    iq, ik, w, q, k, v = inputs
    choice = choose(iq, ik, w, pack, TOP, range(20))
    values = attend(q, k, v, choice, pack, SCALE)
    with torch.no_grad():
        shares = attention_shares(q, k, choice, pack, SCALE)
    divergence = index_divergence(iq, ik, w, shares, choice, pack, range(20))
    expected, expected_divergence, chosen = token_by_token(inputs, pieces)

    assert [row[row >= 0].sort().values.tolist() for row in choice] == [best.tolist() for best in chosen]
    weights = torch.randn(expected.shape)
    for found, wanted in ((values, expected), (divergence, expected_divergence)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=bound)
    pairs = ((values, divergence), (expected, expected_divergence))
    slopes = [torch.autograd.grad((a * weights).sum() + b.sum(), inputs) for a, b in pairs]
    torch.testing.assert_close(*slopes, rtol=0, atol=10 * bound)


def test_a_run_of_the_queries_chooses_as_the_whole_pack() -> None:
    iq, ik, w = tensors(torch.float32)[:3]
    for pieces in (WHOLE, TREE):
        whole = choose(iq, ik, w, pack_of(pieces), TOP, range(20))
        runs = [
            choose(iq[a:b], ik, w[a:b], pack_of(pieces), TOP, range(a, b)) for a, b in ((0, 10), (10, 20))
        ]
        assert torch.equal(torch.cat(runs), whole)


def test_of_equal_scores_the_earlier_key_is_chosen() -> None:
    zero = torch.zeros(20, 1, 2)
    choice = choose(zero, zero[:, 0], zero[:, 0, :1], pack_of([(0, 20, 0, 0)]), TOP, range(20))
    assert choice[1:4].tolist() == [[0, 1, -1], [0, 1, 2], [0, 1, 2]]


def test_no_key_of_another_sequence_is_seen() -> None:
    pack, (iq, ik, w, q, k, v) = pack_of(WHOLE), tensors(torch.float32)
    before = attend(q, k, v, choose(iq, ik, w, pack, TOP, range(20)), pack, SCALE)
    for x in (iq, ik, w, q, k, v):
        x.data[9:11] *= 100
    after = attend(q, k, v, choose(iq, ik, w, pack, TOP, range(20)), pack, SCALE)
    assert torch.equal(before[:9], after[:9])
    assert torch.equal(before[11:], after[11:])
    assert not torch.equal(before[9:11], after[9:11])
