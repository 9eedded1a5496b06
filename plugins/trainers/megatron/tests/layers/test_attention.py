"""Packed attention and rotary positions, against one dense call a sequence and against transformers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Glm4Config, LlamaConfig
from transformers.models.glm4.modeling_glm4 import Glm4RotaryEmbedding, apply_rotary_pos_emb as turn_neighbors
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rlcore_megatron.mcore.layers.attention import causal
from rlcore_megatron.mcore.layers.rotary import Rotary, rotate
from rlcore_megatron.mcore.layers.sinks import CpuFlash, Plain, with_sinks
from rlcore_megatron.mcore.packs.sequences import Sequences
from rlcore_toolkit import Piece


def pack_of(lengths: tuple[int, ...]) -> Sequences:
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return Sequences(starts, max(lengths), sum(lengths))


def one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
    out, start = [], 0
    for length in lengths:
        parts = (x[start : start + length].transpose(0, 1) for x in (q, k, v))
        query, key, value = parts
        alone = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out.append(alone.transpose(0, 1))
        start += length
    return torch.cat(out)


@pytest.mark.parametrize("lengths", [(9,), (4, 4, 4), (1, 5, 2, 5, 1, 3), (6, 6, 2), (3, 0, 3)])
@pytest.mark.parametrize("groups", [4, 2])
def test_values_and_gradients_equal_those_of_each_sequence_alone(
    lengths: tuple[int, ...], groups: int
) -> None:
    torch.manual_seed(0)
    total = sum(lengths)
    q, k, v = (torch.randn(total, n, 8, dtype=torch.float64, requires_grad=True) for n in (4, groups, groups))
    weights = torch.randn(total, 4, 8, dtype=torch.float64)
    found = causal(q, k, v, pack_of(lengths), 8**-0.5)
    expected = one_by_one(q, k, v, lengths)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_sequences_are_batched_by_length_and_stay_in_place_where_they_can() -> None:
    mixed = pack_of((1, 5, 2, 5, 1))
    assert sorted((part.count, part.length) for part in mixed.parts) == [(1, 2), (2, 1), (2, 5)]
    assert mixed.order is not None
    assert torch.equal(mixed.order[mixed.inverse], torch.arange(14))
    assert pack_of((4, 4, 7)).order is None
    assert pack_of((3, 2)).positions.tolist() == [0, 1, 2, 0, 1]
    assert pack_of((3, 0, 2)).positions.tolist() == [0, 1, 2, 0, 1]


def test_pieces_that_share_what_is_before_them_equal_whole_sequences() -> None:
    """A trunk of 3 with branches of 2, 4 and 2; a sequence of 5; a trunk of 2 with branches of 2 and 1."""
    torch.manual_seed(0)
    first = [(0, 3, 0, 0), (3, 2, 0, 3), (5, 4, 0, 3), (9, 2, 0, 3)]
    pieces = (*first, (11, 5, 0, 0), (16, 2, 0, 0), (18, 2, 16, 2), (20, 1, 16, 2))
    pack = Sequences(torch.tensor([0, 11, 16, 21], dtype=torch.int32), 11, 21, pieces)
    q, k, v = (torch.randn(21, n, 8, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2))
    weights = torch.randn(21, 4, 8, dtype=torch.float64)
    found = causal(q, k, v, pack, 8**-0.5)
    expected = torch.empty_like(found)
    for start, length, before, count in pieces:
        rows = [*range(before, before + count), *range(start, start + length)]
        whole = one_by_one(q[rows], k[rows], v[rows], (count + length,))
        expected[start : start + length] = whole[count:]
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (found, expected)]
    torch.testing.assert_close(*slopes)
    places = [0, 1, 2, 3, 4, 3, 4, 5, 6, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 2]
    assert pack.positions.tolist() == places


def token_by_token(
    q: Tensor, k: Tensor, v: Tensor, pieces: Sequence[Piece], window: int, sinks: Tensor | None
) -> Tensor:
    """Each query over the keys of its own path alone, as transformers' gpt-oss writes it."""
    out = torch.zeros_like(q)
    for start, length, before, count in pieces:
        path = [*range(before, before + count), *range(start, start + length)]
        for place in range(count, count + length):
            seen = path[max(0, place + 1 - window) : place + 1]
            key, value = (x[seen].repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            scores = torch.einsum("hd,shd->hs", q[path[place]], key) * q.shape[-1] ** -0.5
            joined = scores if sinks is None else torch.cat([scores, sinks[:, None]], dim=1)
            out[path[place]] = torch.einsum("hs,shd->hd", joined.softmax(-1)[:, : len(seen)], value)
    return out


WHOLE: Sequence[Piece] = [(0, 9, 0, 0), (9, 1, 0, 0), (10, 7, 0, 0), (17, 4, 0, 0)]
TREE: Sequence[Piece] = [(0, 5, 0, 0), (5, 1, 0, 5), (6, 8, 0, 5), (14, 4, 0, 5), (18, 3, 0, 0)]
BOUNDS = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 1e-5), torch.bfloat16: (0.03, 0.03)}


@pytest.mark.parametrize("pieces", [WHOLE, TREE], ids=["whole", "tree"])
@pytest.mark.parametrize(("window", "has_sinks"), [(4, True), (3, False), (1, True), (99, True)])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_windows_and_sinks_equal_one_token_after_another(
    pieces: Sequence[Piece], window: int, has_sinks: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    shapes = [(21, 4, 8), (21, 2, 8), (21, 2, 8), *([(4,)] if has_sinks else [])]
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    weights = torch.randn(21, 4, 8, dtype=torch.float64)
    starts = torch.tensor([0, 18, 21] if pieces is TREE else [0, 9, 10, 17, 21], dtype=torch.int32)
    pack = Sequences(starts, 18, 21, tuple(pieces) if pieces is TREE else ())
    q, k, v, *sinks = tensors
    found = causal(q, k, v, pack, 8**-0.5, window=window, sinks=next(iter(sinks), None))
    exact = [x.detach().double().requires_grad_() for x in tensors]
    q, k, v, *sinks = exact
    expected = token_by_token(q, k, v, pieces, window, next(iter(sinks), None))
    slopes = torch.autograd.grad((found.double() * weights).sum(), tensors)
    for x, y in zip(
        (found, *slopes),
        (expected, *torch.autograd.grad((expected * weights).sum(), exact)),
        strict=True,
    ):
        rtol, atol = BOUNDS[dtype]
        torch.testing.assert_close(x.double(), y, rtol=rtol, atol=atol * (1 + float(y.detach().abs().max())))


def test_sinks_with_the_matrix_of_scores_equal_those_without_it() -> None:
    torch.manual_seed(0)
    shapes = [(4,), (3, 4, 7, 8), (3, 2, 9, 8), (3, 2, 9, 8)]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    seen = torch.ones(7, 9, dtype=torch.bool).tril(2)
    settings: dict[str, Any] = {"scale": 0.3, "mask": torch.zeros(7, 9).masked_fill(~seen, -torch.inf)}
    weights = torch.randn(3, 4, 7, 8)
    plain, flash = (with_sinks(kernel(**settings), *tensors) for kernel in (Plain, CpuFlash))
    torch.testing.assert_close(plain, flash)
    slopes = [torch.autograd.grad((out * weights).sum(), tensors) for out in (plain, flash)]
    torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-5)


def test_a_pack_that_its_sequences_do_not_fill_is_an_error() -> None:
    q = torch.randn(6, 2, 4)
    with pytest.raises(AssertionError, match="must fill it"):
        causal(q, q, q, Sequences(torch.tensor([0, 4], dtype=torch.int32), 4, 6), 0.5)


ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_positions_are_those_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    rope = {"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=128, rope_parameters=rope
    )
    positions = torch.tensor([0, 1, 2, 0, 50, 127])
    q, k = torch.randn(6, 4, 16), torch.randn(6, 2, 16)
    cosine, sine = LlamaRotaryEmbedding(config)(q, positions[None])
    expected = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cosine, sine)
    table = Rotary.of(config, torch.device("cpu")).table(positions, torch.float32)
    for x, y in zip((q, k), expected, strict=True):
        torch.testing.assert_close(rotate(x, *table), y[0].transpose(0, 1), rtol=0, atol=1e-6)


def test_dimensions_beyond_the_rotated_ones_stay() -> None:
    x = torch.randn(3, 2, 10)
    table = Rotary(torch.tensor([1.0, 0.1])).table(torch.arange(3), torch.float32)
    turned = rotate(x, *table)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.equal(turned[0], x[0])
    assert not torch.equal(turned[1, :, :4], x[1, :, :4])


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_pairs_of_neighbors_are_turned_as_transformers_turns_them(factor: float) -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": factor}
    config = Glm4Config(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=rope)
    positions = torch.tensor([0, 1, 2, 0, 50, 127])
    q, k = (torch.randn(6, n, 16, dtype=torch.float32, requires_grad=True) for n in (4, 2))
    cosine, sine = Glm4RotaryEmbedding(config)(q, positions[None])
    expected = turn_neighbors(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cosine, sine)
    rotary = Rotary.of(config, torch.device("cpu"), interleaved=True)
    table = rotary.table(positions, torch.float32)
    for x, whole in zip((q, k), expected, strict=True):
        found, y = rotate(x, *table, rotary.interleaved), whole[0].transpose(0, 1)
        torch.testing.assert_close(found, y, rtol=0, atol=1e-6)
        weights = torch.randn_like(found)
        slopes = [torch.autograd.grad((z * weights).sum(), x)[0] for z in (found, y)]
        torch.testing.assert_close(*slopes, rtol=0, atol=1e-6)
