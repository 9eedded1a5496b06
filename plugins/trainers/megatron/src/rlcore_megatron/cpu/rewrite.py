"""The import hook: rewrites the syntax tree of a module that names CUDA. Line numbers are kept."""

import ast
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

STAND_IN_PACKAGE, STAND_IN_MODULE = "rlcore_megatron.cpu", "cuda"
STAND_IN_NAME = "__cpu_cuda__"

_DEVICE = re.compile(r"^cuda(:\d+)?$")
_TENSOR_TYPE = re.compile(r"^torch\.cuda\.(\w*Tensor)$")


class Rewriter(ast.NodeTransformer):
    """One module. `changed` tells whether the stand-in is needed in it."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Device literals, and the type names that `Tensor.type()` is compared with (optimizer.py)."""
        if not isinstance(node.value, str):
            return node
        if _DEVICE.match(node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        # on a CPU `Tensor.type()` says torch.FloatTensor: parameters would be refused as "wrong type"
        return ast.copy_location(ast.Constant(_TENSOR_TYPE.sub(r"torch.\1", node.value)), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        """Left alone: messages, whose parts must not be taken for device literals."""
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """`from torch.cuda import …` (tensor_parallel/random.py takes private names that need a driver)."""
        if node.module == "torch.cuda" and node.level == 0:
            node.module = f"{STAND_IN_PACKAGE}.{STAND_IN_MODULE}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`torch.cuda` → the stand-in."""
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return self._stand_in(node)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        """`pin_memory=True` raises without a driver."""
        self.generic_visit(node)
        if node.arg == "pin_memory" and isinstance(node.value, ast.Constant):
            node.value = ast.copy_location(ast.Constant(False), node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`x.pin_memory()` → `x` (raises without a driver); `x.cuda(…)` → `stand_in.move(x, …)`."""
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "pin_memory" and not node.args:
            return cast(ast.expr, self.visit(function.value))
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "cuda":
            move = ast.Attribute(self._stand_in(node), "move", ast.Load())
            call = ast.Call(move, [function.value, *node.args], node.keywords)
            return ast.fix_missing_locations(ast.copy_location(call, node))
        return node

    def _stand_in(self, node: ast.expr) -> ast.Name:
        self.changed = True
        return ast.copy_location(ast.Name(STAND_IN_NAME, ast.Load()), node)


def rewrite(source: str | bytes, path: str) -> ast.Module:
    """The tree of `source` with CUDA replaced."""
    tree = ast.parse(source, path)
    rewriter = Rewriter()
    rewriter.visit(tree)
    if rewriter.changed:
        place = _first_statement(tree)
        imported = ast.ImportFrom(STAND_IN_PACKAGE, [ast.alias(STAND_IN_MODULE, STAND_IN_NAME)], 0)
        tree.body.insert(place, ast.copy_location(imported, tree.body[place]))
        ast.fix_missing_locations(tree)
    return tree


def _first_statement(tree: ast.Module) -> int:
    """Where an import may stand: behind the docstring and the `__future__` imports."""
    place = 0 if ast.get_docstring(tree, clean=False) is None else 1
    while isinstance(node := tree.body[place], ast.ImportFrom) and node.module == "__future__":
        place += 1
    return place


def _no_fuser(jit: Any) -> None:
    # `jit_fuser` is torch.compile by default: without a GPU it needs a C++ compiler and minutes of warm-up
    jit.disable_jit_fuser()


def _split_sizes(dispatcher: Any) -> None:
    # it makes numpy arrays of split sizes on a GPU only, and gloo's all-to-all takes no tensors for sizes
    def to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and tensor is not None else tensor

    dispatcher.maybe_move_tensor_to_cpu = to_host


def _uneven_gather(mappings: Any) -> None:
    # gloo gathers equal sizes only, and cut experts get another number of tokens from each rank
    from torch import distributed

    gather = mappings._gather_along_first_dim

    def uneven(
        input_: Any, group: Any, output_split_sizes: Any = None, use_global_buffer: bool = False
    ) -> Any:
        if output_split_sizes is None or group.size() == 1:
            return gather(input_, group, output_split_sizes, use_global_buffer)
        output = input_.new_empty(sum(output_split_sizes), *input_.shape[1:])
        copies = input_.repeat(group.size(), *(1 for _ in input_.shape[1:]))
        sent = [len(input_)] * group.size()
        distributed.all_to_all_single(output, copies, output_split_sizes, sent, group=group)
        return output

    mappings._gather_along_first_dim = uneven


AFTER_IMPORT: Mapping[str, Callable[[ModuleType], None]] = {
    "megatron.core.jit": _no_fuser,
    "megatron.core.tensor_parallel.mappings": _uneven_gather,
    "megatron.core.transformer.moe.token_dispatcher": _split_sizes,
}
"""What no rewriting of names reaches: called once with the imported module."""


@functools.cache
def _cache_tag() -> str:
    """The tag of the bytecode that this very rewriter makes."""
    return "rlcore" + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles the rewritten source, whose bytecode has a file of its own beside that of the original."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if b"cuda" not in source and b"pin_memory" not in source:  # most modules name neither
            return super().get_code(fullname)
        cache = importlib.util.cache_from_source(path, optimization=_cache_tag())
        header = importlib.util.MAGIC_NUMBER + importlib.util.source_hash(source)
        with suppress(OSError, ValueError, EOFError, TypeError):  # missing or damaged: it is made again
            cached = self.get_data(cache)
            if cached.startswith(header):
                code = marshal.loads(memoryview(cached)[len(header) :])
                if isinstance(code, CodeType):
                    return code
        code = compile(rewrite(source, path), path, "exec", dont_inherit=True)
        if not sys.dont_write_bytecode:
            self.set_data(cache, header + marshal.dumps(code))  # does nothing where it may not write
        return code

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        after = AFTER_IMPORT.get(module.__name__)
        if after is not None:
            after(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `packages` where they are, and hands them to `Loader`."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == package or fullname.startswith(f"{package}.") for package in self.packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec
