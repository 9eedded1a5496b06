"""A file with the reward functions of a program alone: rlcore loads it, and no training begins."""

import ast
from collections.abc import Iterable, Sequence


def companion(tree: ast.Module, source: str, functions: Sequence[ast.expr]) -> tuple[list[str], str]:
    """Names to choose rewards by, and the file that has them; of a reward model, its directory or hub id."""
    names, made = [], []
    for place, node in enumerate(functions):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Constant):
            names.append(str(node.value))
        else:
            names.append(f"reward_{place}")
            made.append(f"reward_{place} = {ast.unparse(node)}")
    wanted = {inner.id for node in functions for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    if not wanted:
        return names, ""
    parts = [ast.get_source_segment(source, node) or "" for node in _needed(tree, wanted)]
    chosen = [name for name, node in zip(names, functions, strict=True) if not isinstance(node, ast.Constant)]
    return names, "\n\n".join([*parts, *made, f"__all__ = {chosen!r}"]) + "\n"


def imported(names: Iterable[str]) -> str:
    """The file for functions of TRL, or of modules by their dotted paths."""
    lines = []
    for name in names:
        module, _, function = name.rpartition(".")
        lines.append(f"from {module or 'trl.rewards'} import {function}")
    chosen = [line.rpartition(" ")[2] for line in lines]
    return "\n".join([*lines, "", f"__all__ = {chosen!r}"]) + "\n"


def _needed(tree: ast.Module, wanted: set[str]) -> list[ast.stmt]:
    """The statements of the module that bind these names, and those that they need in turn."""
    bound = [(node, set(_binds(node))) for node in tree.body]
    needed: set[str] = set()
    while wanted - needed:
        needed |= wanted
        found = [node for node, names in bound if names & needed]
        wanted = {inner.id for node in found for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return [node for node, names in bound if names & needed]


def _binds(node: ast.stmt) -> Iterable[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Import() | ast.ImportFrom():
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        case ast.Assign():
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
