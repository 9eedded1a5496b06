"""Which assignments of a Python program surely happen before a call."""

import ast


def statements_before(call: ast.Call, name: str, tree: ast.Module) -> list[ast.stmt]:
    """The statements of the call's block that stand behind the last one that sets `name`, up to the call."""
    lists = (getattr(node, part, None) for node in ast.walk(tree) for part in ("body", "orelse", "finalbody"))
    blocks = [block for block in lists if isinstance(block, list)]  # the innermost is the last
    block, end = [(block, at) for block in blocks for at in range(len(block)) if _holds(block[at], call)][-1]
    start = max((at + 1 for at in range(end) if _sets(block[at], name)), default=0)
    return block[start:end]


def assignments(call: ast.Call, name: str, tree: ast.Module) -> list[ast.stmt]:
    """Those of the program, in order, without those of functions that have another variable `name`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    others = [node for node in functions if _sets(node, name) and not _holds(node, call)]
    left_out = {node for function in others for node in ast.walk(function)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign))
    return sorted((node for node in nodes if node not in left_out), key=lambda node: node.lineno)


def fields_set(node: ast.stmt, name: str) -> list[ast.Attribute]:
    """The fields of the variable `name` that the statement sets."""
    fields = (inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute))
    stored = (field for field in fields if isinstance(field.ctx, ast.Store))
    return [field for field in stored if isinstance(field.value, ast.Name) and field.value.id == name]


def _holds(node: ast.AST, call: ast.Call) -> bool:
    return any(inner is call for inner in ast.walk(node))


def _sets(node: ast.AST, name: str) -> bool:
    """Whether the variable `name` is set in it, or is a parameter."""
    return any(
        inner.arg == name
        if isinstance(inner, ast.arg)
        else inner.id == name and isinstance(inner.ctx, ast.Store)
        for inner in ast.walk(node)
        if isinstance(inner, ast.arg | ast.Name)
    )
