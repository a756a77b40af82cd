"""Checks that a text is a size expression, and nothing else, before torch evaluates it.

torch writes the sizes of an archive as sympy prints them, `Mul(Integer(2), Symbol('s77'))`, and
reads them with `sympy.sympify`, which evaluates Python. What passes here are numbers, symbols, the
functions of `torch/utils/_sympy/functions.py` and of sympy that sizes are made of, and operators.
The result is bounded too: `9**9**9` is arithmetic, and no machine ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite, log2, prod

_LONGEST = 1 << 14  # characters; those of real programs have some hundreds
_DEEPEST = 64
_MOST_TERMS = 1024  # once it is multiplied out
_MOST_BITS = 4096  # of the largest number in it
_LARGEST_EXPONENT = 64


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
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
# torch counts up to the number of an unbacked symbol.
_UNBACKED = re.compile(r"(?:u|zuf)[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,60})?(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|'(?P<text>[A-Za-z0-9_.+-]*)'|(?P<mark>\*\*|//|<=|>=|==|!=|[-+*/%<>&|~(),=]))"
)
_PRECEDENCE = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 1),
    **dict.fromkeys(("*", "/", "//", "%"), 5),
    "|": 2,
    "&": 3,
    "+": 4,
    "-": 4,
    "**": 7,
}
_UNARY = 6


@dataclass(frozen=True)
class _Measure:
    """Bounds of a part: of the bits of its numbers, and of its terms once it is multiplied out.

    `exponent` is its value, as the exponent of a power, where it is a literal number.
    """

    bits: float
    terms: float = 1
    exponent: float | None = None


def check_size_expression(text: str) -> None:
    """Raises ValueError for a text that is no size expression, or that would take for ever."""
    if len(text) > _LONGEST:
        raise ValueError(f"is {len(text)} characters long, at most {_LONGEST} are read")
    parser = _Parser(_tokens(text))
    parser.expression(0, 0)
    if parser.token != ("end", ""):
        raise ValueError(f"goes on with '{parser.token[1]}'")


def is_symbol(name: str) -> bool:
    """Tell whether a name can be that of a symbol."""
    if _UNBACKED.fullmatch(name) and not _BARE_SYMBOL.fullmatch(name):
        return False
    taken = name in _FUNCTIONS | _SUMS | _POWERS | _CONSTANTS | _LITERALS
    return bool(_SYMBOL.fullmatch(name)) and not taken


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        if (match := _TOKEN.match(text, at)) is None:
            raise ValueError(f"has {text[at : at + 20].strip()!r}, which is no part of a size")
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()
    yield "end", ""


class _Parser:
    """Parses by precedence (Pratt 1973), and measures what it parses."""

    def __init__(self, tokens: Iterator[tuple[str, str]]) -> None:
        self._tokens = tokens
        self.token = next(tokens)

    def _next(self) -> tuple[str, str]:
        token, self.token = self.token, next(self._tokens, ("end", ""))
        return token

    def _accept(self, mark: str) -> bool:
        found = self.token == ("mark", mark)
        if found:
            self._next()
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise ValueError(f"has '{self.token[1]}' where '{mark}' must be")

    def expression(self, depth: int, above: int) -> _Measure:
        """Parse operators that bind tighter than `above`."""
        if depth > _DEEPEST:
            raise ValueError(f"is nested more than {_DEEPEST} deep")
        left = self._operand(depth)
        while self.token[0] == "mark" and (power := _PRECEDENCE.get(self.token[1], 0)) > above:
            mark = self._next()[1]
            # `**` is the one operator that groups from the right.
            right = self.expression(depth + 1, power - (mark == "**"))
            kinds = {"+": "Add", "-": "Add", "*": "Mul", "**": "Pow"}
            left = _measured(kinds.get(mark, mark), [left, right])
        return left

    def _operand(self, depth: int) -> _Measure:
        kind, text = self._next()
        if kind == "number":
            return _number(text)
        if kind == "mark" and text in ("-", "+", "~"):
            inner = self.expression(depth + 1, _UNARY)
            return inner if inner.exponent is None else _Measure(inner.bits, 1, -inner.exponent)
        if kind == "mark" and text == "(":
            return self._grouped(depth)
        if kind == "name" and self._accept("("):
            return self._literal(text) if text in _LITERALS else self._call(text, depth)
        if kind == "name" and (text in _CONSTANTS or _BARE_SYMBOL.fullmatch(text)):
            return _Measure(1)
        raise ValueError(f"has {text!r}, which is no part of a size" if text else "ends too early")

    def _grouped(self, depth: int) -> _Measure:
        """Parse what stands in parentheses: one expression, or the pair of a Piecewise."""
        parts = [self.expression(depth + 1, 0)]
        while self._accept(","):
            parts.append(self.expression(depth + 1, 0))
        self._expect(")")
        return parts[0] if len(parts) == 1 else _measured("tuple", parts)

    def _call(self, name: str, depth: int) -> _Measure:
        if name not in _FUNCTIONS | _SUMS | _POWERS:
            raise ValueError(f"calls '{name}', which is no function of sizes")
        arguments: list[_Measure] = []
        while not self._accept(")"):
            if arguments:
                self._expect(",")
            arguments.append(self.expression(depth + 1, 0))
        if len(arguments) > (256 if name in _SUMS else 16):
            raise ValueError(f"gives '{name}' {len(arguments)} arguments")
        return _measured(name, arguments)

    def _literal(self, name: str) -> _Measure:
        """Parse the arguments of a symbol or a number, which are literals."""
        parts: list[str] = []
        while not self._accept(")"):
            if parts:
                self._expect(",")
            kind, text = self._next()
            sign = text if (kind, text) in (("mark", "-"), ("mark", "+")) else ""
            if sign:
                kind, text = self._next()
            if kind == "name" and parts:  # an assumption, or a Float's precision
                self._expect("=")
                value = self._next()[1]
                if not re.fullmatch(r"True|False|[0-9]{1,3}", value):
                    raise ValueError(f"has {text}={value}")
            elif kind in ("number", "text"):
                parts.append(sign + text)
            else:
                raise ValueError(f"has '{text}' in {name}(...)")
        return _CHECKS[name](parts)


def _number(text: str) -> _Measure:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"has the number {text[:50]}, which is too long or none")
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"has the number {text}, which is too large")
    whole = _INTEGER.fullmatch(text)
    # A float is as wide as its mantissa, and as its exponent moves that.
    bits = abs(int(text)).bit_length() if whole else 53 + abs(log2(abs(value) or 1))
    return _Measure(bits, 1, value)


def _symbol(parts: list[str]) -> _Measure:
    if len(parts) != 1 or not is_symbol(parts[0]):
        raise ValueError(f"has the symbol {parts}")
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


def _measured(name: str, arguments: list[_Measure]) -> _Measure:
    """Measure a call, and raise ValueError for one that grows beyond all bounds."""
    bits = sum(each.bits for each in arguments) + 1
    terms: float = 1
    if name in _POWERS and len(arguments) > 1:
        base, exponent = arguments[0], arguments[1]
        times = _exponent(exponent)
        bits, terms = base.bits * times + times, base.terms**times
    elif name == "Add":
        bits = max((each.bits for each in arguments), default=0) + len(arguments).bit_length()
        terms = sum(each.terms for each in arguments)
    elif name == "Mul":
        terms = prod(each.terms for each in arguments)
    if bits > _MOST_BITS or terms > _MOST_TERMS:
        raise ValueError("becomes too large a number, or too many terms")
    return _Measure(bits, terms)


def _exponent(measure: _Measure) -> float:
    """Return how often a base is multiplied at most; an exponent is a literal number."""
    if measure.exponent is None and measure.bits == 3:  # Rational(1, 2), a square root
        return 1
    if measure.exponent is None or not abs(measure.exponent) <= _LARGEST_EXPONENT:
        raise ValueError(f"has an exponent other than a number up to {_LARGEST_EXPONENT}")
    return max(1.0, abs(measure.exponent))
