from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlcore_toolkit import cpu_kernels as kernels


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def results(function: Callable[..., Tensor], *inputs: Tensor, gradient: Tensor) -> list[Tensor]:
    """The value of a function, which may be changed in place, and the gradient of each input."""
    leaves = [one.clone().requires_grad_() for one in inputs]
    out = function(*leaves).mul_(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


@pytest.fixture(params=[True, False], ids=["onednn", "mkl"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either library, whichever this processor takes."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(kernels, "_TAKES_ONEDNN", request.param)
    monkeypatch.setattr(kernels, "_INTEL", not request.param)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("rows", [0, 1, 31, 700])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (96, 64), (7, 5)])
def test_linear_is_torchs_own(rows: int, inputs: int, outputs: int) -> None:
    x, weight, gradient = (
        random(rows, 1, inputs, seed=0),
        random(outputs, inputs, seed=1),
        random(rows, 1, outputs, seed=2),
    )
    ours = results(kernels.kernel_linear, x, weight, gradient=gradient)
    theirs = results(functional.linear, x.double(), weight.double(), gradient=gradient.double())
    for mine, exact in zip(ours, theirs, strict=True):
        assert mine.shape == exact.shape
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3000])
def test_swiglu_is_torchs_own(rows: int) -> None:
    """The second one takes several blocks, the last of them shorter."""
    x, gradient = random(rows, 1, 192, seed=0), random(rows, 1, 96, seed=1)
    ours = results(kernels.kernel_swiglu, x, gradient=gradient)
    theirs = results(swiglu, x.double(), gradient=gradient.double())
    for mine, exact in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_hooked", [False, True])
def test_swiglus_gradient_stands_where_its_input_stood_unless_a_hook_saw_it(is_hooked: bool) -> None:
    rows, gradient = random(3000, 1, 8, seed=0), random(3000, 1, 96, seed=1)
    layer, seen = nn.Linear(8, 192), list[Tensor]()
    if is_hooked:
        layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.square().sum()))
    x = layer(rows)
    value, expected = results(swiglu, x.detach(), gradient=gradient)
    out = kernels.kernel_swiglu(x, made_by=[layer])
    assert torch.equal(out, value)
    before = x.detach().clone()
    out.backward(gradient, retain_graph=is_hooked)
    torch.testing.assert_close(x.detach(), before if is_hooked else expected)
    for loss in seen:
        loss.backward()


@pytest.mark.parametrize("rows", [1, 3000])
def test_rms_norm_is_torchs_own(rows: int) -> None:
    """The second one takes several blocks, the last of them shorter."""
    x, weight, gradient = random(rows, 2, 96, seed=0), random(96, seed=1), random(rows, 2, 96, seed=2)

    def own(x: Tensor, weight: Tensor) -> Tensor:
        return kernels.kernel_rms_norm(x, weight, 1e-6)

    def theirs(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (96,), weight, 1e-6)

    ours = results(own, x, weight, gradient=gradient)
    exact = results(theirs, x.double(), weight.double(), gradient=gradient.double())
    for mine, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.usefixtures("_library")
def test_strided_inputs_are_read_right() -> None:
    x, weight = random(3, 40, 64, seed=0).transpose(0, 1), random(48, 128, seed=1)[:, :64]
    gradient = random(48, 120, seed=2).t().reshape(40, 3, 48)
    ours = results(kernels.kernel_linear, x, weight, gradient=gradient)
    theirs = results(functional.linear, x, weight, gradient=gradient)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(kernels.kernel_swiglu(x), swiglu(x))
    normed = functional.rms_norm(x, (64,), weight[0, :64], 1e-6)
    torch.testing.assert_close(kernels.kernel_rms_norm(x, weight[0, :64], 1e-6), normed)


def test_a_block_of_one_row_is_the_row_of_many() -> None:
    x = random(3000, 192, seed=0)
    weight = random(192, seed=1)
    for kernel in (kernels.kernel_swiglu, lambda rows: kernels.kernel_rms_norm(rows, weight, 1e-6)):
        assert torch.equal(kernel(x)[1234], kernel(x[1234:1235])[0])


def test_only_fp32_on_a_cpu_fits() -> None:
    assert kernels.fits_kernel(torch.zeros(1))
    assert not kernels.fits_kernel(torch.zeros(1, dtype=torch.bfloat16))
    assert not kernels.fits_kernel(torch.zeros(1, device="meta"))


@pytest.mark.parametrize(
    ("onednn", "mkl", "capability", "is_intel", "taken"),
    [
        (True, True, "AVX512", False, True),
        (True, True, "AVX512", True, False),
        (True, True, "AVX2", False, False),
        (True, False, "DEFAULT", False, True),
        (False, True, "AVX512", False, False),
    ],
)
def test_products_go_to_the_faster_library(
    onednn: bool, mkl: bool, capability: str, is_intel: bool, taken: bool
) -> None:
    found = kernels.takes_onednn(onednn=onednn, mkl=mkl, capability=capability, is_intel=is_intel)
    assert found is taken


@pytest.mark.parametrize("large", [0, 1 << 18], ids=["in parts", "as a whole"])
@pytest.mark.parametrize("shape", [(96, 64), (70, 33), (1, 5), (5, 1), (0, 4)])
def test_layouts_hold_the_same_values(
    shape: tuple[int, int], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_COLUMNS", True)
    monkeypatch.setattr(kernels, "_LARGE_MATRIX", large)
    weight = random(*shape, seed=0)
    laid_out = kernels.for_few_rows(weight)
    assert laid_out.t().is_contiguous()
    assert torch.equal(laid_out, weight)
    back = kernels.by_rows(laid_out[1:])
    assert back.is_contiguous()
    assert torch.equal(back, weight[1:])
    kernels.copy_into(laid_out, -weight)
    assert torch.equal(laid_out, -weight)
    assert kernels.for_few_rows(weight.bfloat16()).is_contiguous()
