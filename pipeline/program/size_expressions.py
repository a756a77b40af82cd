"""Checks that a string is nothing but a size expression, before torch evaluates it.

torch writes the sizes of an archive as sympy prints them, `Mul(Integer(2), Symbol('s77'))`, and
reads them with `sympy.sympify`, which evaluates Python. Here Python's own parser turns the text
into a tree, and each node must be a number, a symbol, an operator, or one of the functions of
`torch/utils/_sympy/functions.py` and sympy that occur in sizes. The result is bounded too:
`9**9**9` is mere arithmetic, but no machine could finish it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log2, prod

_LONGEST = 1 << 14  # characters; the expressions of real programs have some hundreds
_DEEPEST = 64
_MOST_TERMS = 1024  # once the expression is multiplied out
_MOST_BITS = 4096  # in the largest number of the expression
_LARGEST_EXPONENT = 64


def words(text: str) -> frozenset[str]:
    """Return the words of a string as a set."""
    return frozenset(text.split())


_SUMS = frozenset({"Add", "Mul", "And", "Or"})
_POWERS = frozenset({"Pow", "FloatPow", "LShift", "RShift", "RoundDecimal"})
_FUNCTIONS = words(
    # torch/_export/serde/serialize.py, `sympy_functions`
    "FloorDiv ModularIndexing Where PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv "
    "PowByNatural FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat "
    "TruncToInt RoundToInt ToFloat Identity "
    # torch/utils/_sympy/functions.py
    "BitwiseFn_bitwise_and BitwiseFn_bitwise_or BitwiseFn_bitwise_xor "
    "OpaqueUnaryFn_sqrt OpaqueUnaryFn_cos OpaqueUnaryFn_cosh OpaqueUnaryFn_sin OpaqueUnaryFn_sinh "
    "OpaqueUnaryFn_tan OpaqueUnaryFn_tanh OpaqueUnaryFn_asin OpaqueUnaryFn_acos OpaqueUnaryFn_atan "
    "OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_asinh OpaqueUnaryFn_log2 "
    # sympy
    "Max Min Abs floor ceiling Eq Ne Lt Le Gt Ge Equality Unequality StrictLessThan LessThan "
    "StrictGreaterThan GreaterThan Not Xor ITE Piecewise ExprCondPair IntInfinity "
    "NegativeIntInfinity"
)
_CONSTANTS = frozenset({"true", "false", "True", "False", "oo", "int_oo"})
_LITERALS = frozenset({"Symbol", "Integer", "Rational", "Float"})
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_BARE_SYMBOL = re.compile(r"(?:s|u|zf|zuf)[0-9]{1,6}")
# An unbacked symbol needs a small number, because torch counts up to it.
_UNBACKED = re.compile(r"(?:u|zuf)[0-9]+")
_BACKED = re.compile(r"s[0-9]{1,9}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,60})?(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_CHARACTERS = re.compile(r"[A-Za-z0-9_.'()+*/%<>&|~=!, \t-]*")
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "Add",
    ast.Sub: "Add",
    ast.Mult: "Mul",
    ast.Pow: "Pow",
    **dict.fromkeys(
        (ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr), "operator"
    ),
}


@dataclass(frozen=True)
class _Measure:
    """Bounds of a subexpression: the bits of its numbers, and its terms once multiplied out.

    `exponent` is the value of a literal number, for use as the exponent of a power; None for any
    other subexpression.
    """

    bits: float
    terms: float = 1
    exponent: float | None = None


def check_size_expression(text: str) -> None:
    """Raise ValueError if a string isn't a size expression, or would take forever to evaluate."""
    if len(text) > _LONGEST:
        raise ValueError(f"is {len(text)} characters long, at most {_LONGEST} are read")
    text = text.strip()
    end = len(_CHARACTERS.match(text)[0])  # type: ignore[index]  # it also matches ""
    if end < len(text):
        raise ValueError(_describe_part(text[end:]))
    try:
        expression = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(_describe_part(text[(error.offset or 1) - 1 :])) from None
    except (
        MemoryError,
        RecursionError,
        ValueError,
    ):  # raised by a parser that bounds its stack
        raise ValueError(f"is nested more than {_DEEPEST} levels deep") from None
    if isinstance(expression, ast.Tuple):
        raise ValueError("is several expressions")
    _Measurer(text).measure(expression, 0)


def _describe_part(part: str) -> str:
    if part:
        return f"has {part[:20]!r}, which is not part of a size"
    return "ends too early"


def is_symbol(name: str) -> bool:
    """Return whether a symbol may have this name."""
    if _UNBACKED.fullmatch(name) and not _BARE_SYMBOL.fullmatch(name):
        return False
    is_reserved = name in _FUNCTIONS | _SUMS | _POWERS | _CONSTANTS | _LITERALS
    return bool(_SYMBOL.fullmatch(name)) and not is_reserved


def is_backed_symbol(name: str) -> bool:
    """Return whether torch gives such a name to a backed symbol, which is a size with a hint."""
    return bool(_BACKED.fullmatch(name))


class _Measurer:
    """A visitor that measures a tree, and raises ValueError if a node can't be part of a size."""

    def __init__(self, text: str) -> None:
        self._text = text

    def measure(self, node: ast.AST, depth: int) -> _Measure:
        """Return the bounds of a subexpression."""
        if depth > _DEEPEST:
            raise ValueError(f"is nested more than {_DEEPEST} levels deep")
        match node:
            case ast.Constant(value=bool()):
                return _Measure(1)
            case ast.Constant(value=int() | float()):
                return _number(self._source(node))
            case ast.Name(id=name) if name in _CONSTANTS or _BARE_SYMBOL.fullmatch(
                name
            ):
                return _Measure(1)
            case ast.UnaryOp(
                op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand
            ):
                inner = self.measure(operand, depth + 1)
                if inner.exponent is None:
                    return inner
                return _Measure(inner.bits, 1, -inner.exponent)
            case ast.BinOp(left=left, op=operator, right=right) if (
                type(operator) in _OPERATORS
            ):
                return self._combine(_OPERATORS[type(operator)], [left, right], depth)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
                isinstance(operator, _COMPARISONS)
            ):
                return self._combine("comparison", [left, right], depth)
            case ast.Tuple(elts=parts) if len(parts) > 1:  # a pair in a Piecewise
                return self._combine("tuple", parts, depth)
            case ast.Call(func=ast.Name(id=name)) if name in _LITERALS:
                return self._literal(name, node)
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                return self._call(name, node.args, depth)
        raise ValueError(_describe_part(self._source(node)))

    def _call(self, name: str, arguments: Sequence[ast.expr], depth: int) -> _Measure:
        if name not in _FUNCTIONS | _SUMS | _POWERS:
            raise ValueError(f"calls '{name}', which is not a function of sizes")
        if len(arguments) > (256 if name in _SUMS else 16):
            raise ValueError(f"gives '{name}' {len(arguments)} arguments")
        return self._combine(name, arguments, depth)

    def _combine(self, name: str, parts: Sequence[ast.expr], depth: int) -> _Measure:
        return _combine(name, [self.measure(part, depth + 1) for part in parts])

    def _literal(self, name: str, call: ast.Call) -> _Measure:
        """Measure the call of a symbol or number constructor, whose arguments are literals."""
        for keyword in call.keywords:  # an assumption, or a Float's precision
            value = self._source(keyword.value)
            if keyword.arg is None or not re.fullmatch(r"True|False|[0-9]{1,3}", value):
                raise ValueError(f"has {keyword.arg}={value[:20]}")
        return _CHECKS[name](
            [self._literal_text(name, argument) for argument in call.args]
        )

    def _literal_text(self, name: str, argument: ast.expr) -> str:
        text = self._source(argument)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"has '{text[:20]}' in {name}(...)")
        return text

    def _source(self, node: ast.AST) -> str:
        """Return the text of a node; the whole text is a single line of ASCII characters."""
        assert isinstance(node, ast.expr)
        return self._text[node.col_offset : node.end_col_offset]


def _number(text: str) -> _Measure:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"has the number {text[:50]}, which is too long or invalid")
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"has the number {text}, which is too large")
    whole = _INTEGER.fullmatch(text)
    # The width of a float is that of its mantissa plus the distance that its exponent shifts it.
    if whole:
        bits: float = abs(int(text)).bit_length()
    else:
        bits = 53 + abs(log2(abs(value) or 1))
    return _Measure(bits, 1, value)


def _symbol(parts: list[str]) -> _Measure:
    if len(parts) != 1 or not is_symbol(parts[0]):
        raise ValueError(f"has the symbol {str(parts)[:80]}")
    return _Measure(1)


def _literal_number(count: int) -> Callable[[list[str]], _Measure]:
    def check(parts: list[str]) -> _Measure:
        if len(parts) != count:
            raise ValueError(f"has a number of {len(parts)} parts, must be {count}")
        numbers = [_number(part) for part in parts]
        value = numbers[0].exponent if count == 1 else None
        return _Measure(sum(n.bits for n in numbers), 1, value)

    return check


_CHECKS: dict[str, Callable[[list[str]], _Measure]] = {
    "Symbol": _symbol,
    "Integer": _literal_number(1),
    "Float": _literal_number(1),
    "Rational": _literal_number(2),
}


def _combine(name: str, arguments: list[_Measure]) -> _Measure:
    """Measure a call, and raise ValueError if its result could exceed the bounds."""
    bits = sum(argument.bits for argument in arguments) + 1
    terms: float = 1
    if name in _POWERS and len(arguments) > 1:
        base = arguments[0]
        exponent = arguments[1]
        times = _exponent(exponent)
        bits = base.bits * times + times
        terms = base.terms**times
    elif name == "Add":
        bits = (
            max((argument.bits for argument in arguments), default=0)
            + len(arguments).bit_length()
        )
        terms = sum(argument.terms for argument in arguments)
    elif name == "Mul":
        terms = prod(argument.terms for argument in arguments)
    if bits > _MOST_BITS or terms > _MOST_TERMS:
        raise ValueError("becomes too large a number, or too many terms")
    return _Measure(bits, terms)


def _exponent(measure: _Measure) -> float:
    """Return how many times a power multiplies its base at most.

    Raises ValueError unless the exponent is a literal number within bounds.
    """
    if measure.exponent is None and measure.bits == 3:  # Rational(1, 2), a square root
        return 1
    if measure.exponent is None or not abs(measure.exponent) <= _LARGEST_EXPONENT:
        raise ValueError(
            f"has an exponent other than a number up to {_LARGEST_EXPONENT}"
        )
    return max(1.0, abs(measure.exponent))
