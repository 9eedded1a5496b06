"""The gated delta rule and its convolution over packs, against one token after another."""

from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.layers import delta_kernels
from rlcore_megatron.mcore.layers.delta_rule import causal_convolution, gated_delta_rule
from rlcore_megatron.mcore.packs.chunks import Chunks, Run

KEY_HEADS, VALUE_HEADS, KEY, VALUE = 2, 4, 8, 6
PACKS: Sequence[tuple[Sequence[Run], int]] = (
    ([(0, 37, -1), (37, 20, 0), (57, 1, 0), (58, 70, 0), (128, 9, -1)], 16),  # a prompt and three responses
    ([(0, 5, -1), (5, 1, -1), (6, 70, -1), (76, 130, -1), (206, 64, -1)], 64),
    ([(0, 3, -1)], 64),
)


def step_by_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The rule as the paper writes it (arXiv:2412.06464, equation 10), for one sequence."""
    groups = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(groups, dim=1) for x in (q, k))
    state, out = q.new_zeros(v.shape[1], q.shape[-1], v.shape[-1]), []
    for t in range(len(q)):
        state = state * decay[t].exp()[..., None]
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * error)
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out)


def whole(run: Run, runs: Sequence[Run]) -> list[int]:
    """The places of a run's tokens, those of the run that it goes on from first."""
    start, length, before = run
    above = [] if before < 0 else whole(next(other for other in runs if other[0] == before), runs)
    return [*above, *range(start, start + length)]


def inputs(total: int, rates: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys of length 1, values, decays (`rates` of a head), betas."""
    generator = torch.Generator().manual_seed(total)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    keys = functional.normalize(noise(total, KEY_HEADS, KEY), dim=-1)
    decay, beta = -noise(total, VALUE_HEADS, rates).exp(), noise(total, VALUE_HEADS).sigmoid()
    tensors = noise(total, KEY_HEADS, KEY) * KEY**-0.5, keys, noise(total, VALUE_HEADS, VALUE), decay, beta
    return [x.to(dtype).requires_grad_() for x in tensors]


@pytest.mark.parametrize(("runs", "size"), PACKS)
@pytest.mark.parametrize("rates", [1, KEY])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_values_and_gradients_are_those_of_each_sequence_alone(
    runs: Sequence[Run], size: int, rates: int, dtype: torch.dtype, rounding: float
) -> None:
    total = sum(length for _, length, _ in runs)
    tensors = inputs(total, rates, dtype)
    weights = torch.randn(total, VALUE_HEADS, VALUE, generator=torch.Generator().manual_seed(1))
    q, k, v, decay, beta = tensors
    found = gated_delta_rule(q, k, v, decay, beta, Chunks(runs, total, size))
    wide = [x.detach().double().requires_grad_() for x in tensors]
    rows = {}
    for run in runs:
        out = step_by_step(*(x[whole(run, runs)] for x in wide))
        rows[run[0]] = out[len(out) - run[1] :]
    expected = torch.cat([rows[start] for start, _, _ in runs])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for x, y in zip(
        torch.autograd.grad((found * weights).sum(), tensors),
        torch.autograd.grad((expected * weights).sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(x.double(), y, rtol=rounding, atol=rounding / 10)


@pytest.mark.parametrize("rates", [1, KEY])
def test_decays_that_forget_all_at_once_stay_finite(rates: int) -> None:
    q, k, v, decay, beta = inputs(40, rates)
    found = gated_delta_rule(q, k, v, decay * 1e4, beta, Chunks([(0, 40, -1)], 40))
    found.sum().backward()
    assert all(bool(x.grad is not None and x.grad.isfinite().all()) for x in (q, k, v, decay, beta))


@pytest.mark.parametrize(("runs", "size"), PACKS)
def test_the_convolution_sees_its_own_sequence_alone(runs: Sequence[Run], size: int) -> None:
    total = sum(length for _, length, _ in runs)
    x, weight = torch.randn(total, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    found = causal_convolution(x, weight, Chunks(runs, total, size).taps(3))
    for run in runs:
        line = functional.pad(x[whole(run, runs)].mT, (3, 0))
        expected = functional.conv1d(line[None], weight[:, None], groups=5)[0].mT
        torch.testing.assert_close(found[run[0] : run[0] + run[1]], expected[-run[1] :])


@pytest.mark.parametrize(("runs", "size"), PACKS)
def test_a_kernel_without_states_convolves_runs_behind_what_they_go_on_from(
    runs: Sequence[Run], size: int
) -> None:
    total = sum(length for _, length, _ in runs)
    x, weight = torch.randn(total, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    chunks = Chunks(runs, total, size)
    tokens, ends, own = chunks.reaching(3)
    alone = [
        functional.conv1d(functional.pad(part.mT, (3, 0))[None], weight[:, None], groups=5)[0].mT
        for part in x[tokens].split(ends.diff().tolist())
    ]
    torch.testing.assert_close(torch.cat(alone)[own], causal_convolution(x, weight, chunks.taps(3)))


@pytest.mark.parametrize(("runs", "size"), PACKS)
def test_levels_name_the_tokens_of_their_runs_in_the_order_of_the_states(
    runs: Sequence[Run], size: int
) -> None:
    chunks, above, seen = Chunks(runs, total := sum(length for _, length, _ in runs), size), [-1], []
    for level in chunks.levels:
        starts = [int(part[0]) for part in level.tokens.split(level.ends.diff().tolist())]
        before = [above[place] for place in ([0] * len(starts) if level.before is None else level.before)]
        assert {(start, goes_on) for start, goes_on in zip(starts, before, strict=True)} <= {
            (start, goes_on) for start, _, goes_on in runs
        }
        above = starts
        seen.append(level.tokens)
    assert torch.cat(seen)[chunks.places].tolist() == list(range(total))


@pytest.mark.parametrize(
    ("factors", "is_taken"),
    [((1, 1, 1), True), ((1.02, 1, 1), False), ((1, 1.03, 1), False), ((1, 1, 0.97), False)],
    ids=["rounding", "queries", "decays", "betas"],
)
def test_kernels_that_round_are_taken_and_wrong_ones_are_not(
    factors: Sequence[float], is_taken: bool
) -> None:
    """The kernels are torch's, whose products are in bf16."""

    def recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
        scaled = (q.to(v.dtype) * factors[0], k, v, decay * factors[1], beta * factors[2])
        with torch.autocast("cpu", torch.bfloat16):
            return gated_delta_rule(*scaled, chunks).to(v.dtype)

    kernels = delta_kernels.DeltaKernels(delta_kernels.TORCH.convolve, recur)
    place = torch.device("cpu")
    gaps = delta_kernels.kernel_gaps(kernels, (2, 4), (16, 32), torch.bfloat16, place)
    assert (delta_kernels.too_far(gaps, torch.bfloat16) is None) is is_taken


@pytest.mark.skipif(find_spec("fla") is not None, reason="fla-core is installed")
def test_torch_computes_without_fla() -> None:
    case = ((KEY_HEADS, VALUE_HEADS), (KEY, VALUE), torch.float32)
    assert delta_kernels.kernels_for(*case) is delta_kernels.TORCH
    assert delta_kernels._reason_against_fla(*case) == "fla-core is not installed"
