"""`tested`: which tests of a label can fail, by what they run."""

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

_FAILS = re.compile(r"assert|exit|fail|raises", re.IGNORECASE)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def tested(tests: Sequence[str]) -> list[bool]:
    """For each test whether it can fail, rather than define what others use.

    The tests share their names. `ValueError`, a sentence, where one is no Python, or none can fail, or none
    uses the program.
    """
    trees = [_parsed(number, test) for number, test in enumerate(tests, 1)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {name: module for node in nodes for name, module in _imported(node)}
    if "solution" in imported.values():
        raise ValueError(
            "the label imports 'solution', which is no module: leave the import out, tests find the names of "
            "the program without it"
        )
    bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(ast.unparse(base).endswith("TestCase") for base in bases):
        raise ValueError("the label has a TestCase, whose runner raises nothing: write plain asserts")
    defined = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    ran = [list(_run(tree.body, defined)) for tree in trees]
    counts = [any(_can_fail(node, imported) for node in nodes) for nodes in ran]
    if not any(counts):
        idle = [
            name
            for name, node in defined.items()
            if any(isinstance(one, ast.Assert) for one in ast.walk(node))
        ]
        raise ValueError(
            f"the label tests nothing: nothing calls {idle[-1]!r}, which holds its asserts; add the call"
            if idle
            else "the label tests nothing: it runs no assert; write `assert add(1, 2) == 3`"
        )
    if not _of_program([node for nodes in ran for node in nodes], nodes, imported):
        raise ValueError("the label tests nothing of the program: it uses no name that a program defines")
    return counts


def _parsed(number: int, test: str) -> ast.Module:
    try:
        return ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        fault = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"test {number} of the label is no Python: {fault}") from error


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import gives, each with its module."""
    if isinstance(node, ast.ImportFrom):
        yield from (
            (alias.asname or alias.name, (node.module or "").partition(".")[0]) for alias in node.names
        )
    elif isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield alias.asname or first, first


def _run(body: Iterable[ast.AST], defined: Mapping[str, ast.AST]) -> Iterator[ast.AST]:
    """What runs when the statements do: their nodes, and those of the definitions that they name."""
    waiting, known = list(body), set[str]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            waiting += node.orelse  # the tests have another name
            continue
        yield node
        if isinstance(node, ast.Name) and node.id in defined and node.id not in known:
            known.add(node.id)
            waiting += [inner for inner in ast.walk(defined[node.id]) if inner is not defined[node.id]]
        waiting += node.decorator_list if isinstance(node, _DEFINITIONS) else ()
        waiting += () if isinstance(node, _SCOPES) else ast.iter_child_nodes(node)


def _can_fail(node: ast.AST, imported: Mapping[str, str]) -> bool:
    if isinstance(node, ast.Assert):
        return not (isinstance(node.test, ast.Tuple) and node.test.elts)  # which is true
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise)
    name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    module = imported.get(name.partition(".")[0], "")
    foreign = module and module not in sys.stdlib_module_names  # such as numpy.testing
    return bool(foreign or _FAILS.search(name.rpartition(".")[2]))


def _of_program(ran: Sequence[ast.AST], nodes: Sequence[ast.AST], imported: Mapping[str, str]) -> bool:
    """Whether something that runs can be the program's: a name that no test defines, or one builtin."""
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)} | {*imported}
    own |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
    used = {node.id for node in ran if isinstance(node, ast.Name)} - own
    called = {node.func.id for node in ran if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    foreign = used - {*dir(builtins)} - (sys.stdlib_module_names - called)
    return bool(foreign) or len(called & {*dir(builtins)} - own) == 1
