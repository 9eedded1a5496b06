"""The integers of `$((…))` and `((…))`."""

import ast
import operator
import re
from collections.abc import Callable

_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}
SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""Where a sum sets a variable."""

LARGEST_POWER = 64
LIMIT = 2**63
"""bash counts in 64 bits."""


def of_sum(text: str) -> int | None:
    """Its value; None: it has none, or one that is not read here."""
    text = text.strip().replace("&&", " and ").replace("||", " or ")
    if re.search(r"-\s*[\w(]+\)?\s*\*\*|\d_|\b0\d", text):  # bash: -2**2 is 4, and 010 is 8
        return None
    try:
        return _of_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _of_node(node: ast.expr) -> int:
    value = _unbounded(node)
    if not -LIMIT <= value < LIMIT:
        raise ValueError(f"{value} is not a number of 64 bits")
    return value


def _unbounded(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_of_node(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _of_two(op, _of_node(left), _of_node(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return int(_COMPARE[type(op)](_of_node(left), _of_node(right)))
        case ast.BoolOp(op=op, values=values):
            holds = all if isinstance(op, ast.And) else any
            return int(holds([_of_node(value) for value in values]))
    raise ValueError(ast.dump(node))


def _of_two(sign: ast.operator, left: int, right: int) -> int:
    match sign:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():  # bash rounds towards zero
            return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case ast.Mod():
            return abs(left) % abs(right) * (-1 if left < 0 else 1)
        case ast.Pow() if 0 <= right <= LARGEST_POWER:
            return int(left**right)
    raise ValueError(ast.dump(sign))
