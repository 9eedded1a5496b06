"""The CPU platform: what it rewrites, what it leaves alone, and that it does nothing where there is a GPU."""

import ast
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from rlcore_megatron import cpu
from rlcore_megatron.cpu import cuda
from rlcore_megatron.cpu.rewrite import STAND_IN_NAME, Finder, Loader, rewrite
from rlcore_testing.programs import ran


def rewritten(source: str) -> str:
    return ast.unparse(rewrite(textwrap.dedent(source), "example.py"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("torch.empty(1, device='cuda')", "torch.empty(1, device='cpu')"),
        ("device('cuda:3')", "device('cpu')"),
        ("p.type() == 'torch.cuda.HalfTensor'", "p.type() == 'torch.HalfTensor'"),
        ("torch.tensor(1, pin_memory=True)", "torch.tensor(1, pin_memory=False)"),
        ("x.pin_memory().to(y)", "x.to(y)"),
        ("from torch.cuda import _lazy_call", "from rlcore_megatron.cpu.cuda import _lazy_call"),
        ("f'cuda:{x}'", "f'cuda:{x}'"),
        ("x = 'cuda graphs are off'", "x = 'cuda graphs are off'"),
        ("import torch.cuda", "import torch.cuda"),
    ],
)
def test_rewriting_without_the_stand_in(source: str, expected: str) -> None:
    assert rewritten(source) == expected


def test_rewriting_with_the_stand_in_keeps_docstring_futures_and_lines() -> None:
    source = (
        '"""Doc."""\nfrom __future__ import annotations\nx = torch.cuda.current_device()\ny = z.cuda(x)\n'
    )
    tree = rewrite(source, "example.py")
    assert ast.unparse(tree).splitlines() == [
        '"""Doc."""',
        "from __future__ import annotations",
        f"from rlcore_megatron.cpu import cuda as {STAND_IN_NAME}",
        f"x = {STAND_IN_NAME}.current_device()",
        f"y = {STAND_IN_NAME}.move(z, x)",
    ]
    assert [node.lineno for node in tree.body] == [1, 2, 3, 3, 4]


def test_only_the_named_packages_are_found() -> None:
    finder = Finder(("rlcore_megatron.cpu",))
    assert finder.find_spec("rlcore_megatron.cpus", None) is None
    assert finder.find_spec("json", None) is None
    spec = finder.find_spec("rlcore_megatron.cpu.cuda", list(cpu.__path__))
    assert spec is not None
    assert type(spec.loader).__module__ == "rlcore_megatron.cpu.rewrite"


def test_the_rewritten_bytecode_is_kept_until_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = tmp_path / "names_cuda.py"
    source.write_text("found = 'cuda:0'\n")

    def found() -> str:
        loader = Loader("names_cuda", str(source))
        code = loader.get_code("names_cuda")
        assert code is not None
        scope: dict[str, str] = {}
        exec(code, scope)
        return scope["found"]

    assert found() == "cpu"
    [kept] = (tmp_path / "__pycache__").iterdir()
    assert "rlcore" in kept.name, "the original's bytecode has another name"
    monkeypatch.setattr("rlcore_megatron.cpu.rewrite.rewrite", None)  # so that compiling again would fail
    assert found() == "cpu"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    kept.write_bytes(kept.read_bytes()[:40])
    assert found() == "cpu"
    source.write_text("found = 'cuda:0 is written out'\n")
    assert found() == "cuda:0 is written out"


def test_nothing_happens_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "needed", lambda: False)
    before = list(sys.meta_path)
    assert cpu.install() is False
    assert sys.meta_path == before


def run(source: str) -> str:
    done = ran(sys.executable, "-W", "error", "-c", textwrap.dedent(source))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="the platform is not installed where there is a GPU")
def test_installing_is_idempotent_and_too_late_is_an_error() -> None:
    assert run(
        """
        import sys, types
        from rlcore_megatron import cpu
        assert cpu.install() and cpu.install()
        assert sum(type(finder).__name__ == "Finder" for finder in sys.meta_path) == 1
        sys.meta_path.pop(0)
        sys.modules["megatron.core"] = types.ModuleType("megatron.core")
        try:
            cpu.install()
        except RuntimeError as error:
            print(error)
        """
    ).startswith("megatron.core was imported before rlcore_megatron.cpu.install()")


def test_the_stand_in_seeds_the_generator_that_it_reads() -> None:
    state = torch.get_rng_state()
    try:
        cuda.manual_seed(5)
        kept = cuda.get_rng_state()
        first = torch.rand(3)
        cuda.set_rng_state(kept)
        assert torch.equal(first, torch.rand(3))
        assert cuda.initial_seed() == 5
    finally:
        torch.set_rng_state(state)
    assert cuda.amp is torch.cuda.amp, "names that are not replaced are those of torch.cuda"


@pytest.mark.full
def test_mbridge_imports_the_models_that_are_asked_for() -> None:
    assert (
        run(
            """
            import sys
            import rlcore_megatron.mcore
            from mbridge.models.qwen3 import Qwen3Bridge
            assert "mbridge.models.gemma3" not in sys.modules
            assert "transformers.modeling_utils" not in sys.modules, "no class of a model is needed"
            import warnings
            warnings.simplefilter("ignore")
            from mbridge.models import Gemma3Bridge, Qwen3Bridge as again
            assert again is Qwen3Bridge
            print(Gemma3Bridge.__module__)
            """
        )
        == "mbridge.models.gemma3\n"
    )
