"""Imports ExecuTorch without torch's compiler, and without parsing the whole operator table."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pipeline.features.speedups.dataclass_methods import light_dataclasses
from pipeline.program.patching import replaced

_COMPILER = "torch._inductor.fx_passes.post_grad"
_OPERATOR = re.compile(
    r"- func: .*\n  namespace: edge\n  inherits: ([\w:.]+)\n(?:  .*\n)+"
)
_BETWEEN = re.compile(r"(?:#.*\n|\n)*")


def import_executorch(set_up_torch: Callable[[], None]) -> None:
    """Import torch and ExecuTorch without torch's compiler, a fifth of the import time of both.

    `torch.export._remove_auto_functionalized_pass` (torch 2.13) imports the compiler for one
    function, which changes only graphs with higher-order operators; the compiler is imported when
    such a graph comes up. No other code sees the stand-in, which is removed once ExecuTorch is
    imported. The dtypes that operators take (exir/dialects/edge/edge.yaml, 0.1 of 2.1 s) are parsed
    only for operators that are looked up.
    """
    with light_dataclasses():
        set_up_torch()
        if _COMPILER not in sys.modules:
            _import_without_compiler()


def _import_without_compiler() -> None:
    import ruamel.yaml  # not needed for a no-op run or new weights

    # Imported here: it imports torch.
    from pipeline.features.speedups.late_modules import import_late, load_all

    import_late()
    stand_in: Any = ModuleType(_COMPILER)
    stand_in.decompose_auto_functionalized = _decompose_auto_functionalized
    stand_in.__getattr__ = _find_elsewhere
    sys.modules[_COMPILER] = stand_in
    try:
        with replaced(ruamel.yaml, "YAML", _parsing_late):
            try:
                import executorch.exir.program
            except Exception:  # another release needs what is imported late
                load_all()
                import executorch.exir.program  # noqa: F401
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]


def _find_elsewhere(name: str) -> Any:
    """Return an attribute that another release of torch takes from the compiler.

    Special names raise AttributeError: code that goes through all modules asks each for `__file__`
    and the like.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_import_compiler(), name)


def _decompose_auto_functionalized(graph: Any) -> None:
    from executorch.exir.delegate import executorch_call_delegate
    from torch._ops import HigherOrderOperator

    targets = {node.target for node in graph.nodes} - {executorch_call_delegate}
    if any(isinstance(target, HigherOrderOperator) for target in targets):
        _import_compiler().decompose_auto_functionalized(graph)


def _import_compiler() -> Any:
    if getattr(sys.modules.get(_COMPILER), "__spec__", None) is None:  # the stand-in
        sys.modules.pop(_COMPILER, None)
    return importlib.import_module(_COMPILER)


def _parsing_late(reader: Any) -> Any:
    """Return a YAML reader that parses each operator of a table when the operator is first used."""

    def load(self: Any, stream: Any) -> Any:
        operators = split_table(stream) if isinstance(stream, str) else None
        if operators is None:
            return reader.load(self, stream)
        return [
            Operator(name, text, reader(typ="safe").load) for name, text in operators
        ]

    return type(reader.__name__, (reader,), {"load": load})


class Operator(dict[str, Any]):
    """An operator of the table, parsed when more than its name is read."""

    def __init__(self, name: str, text: str, parse: Callable[[str], Any]) -> None:
        super().__init__(inherits=name)
        self._text = text
        self._parse = parse

    def __missing__(self, key: str) -> Any:
        (parsed,) = self._parse(self._text)
        self.update(parsed)
        return parsed[key]


def split_table(table: str) -> list[tuple[str, str]] | None:
    """Return the name and text of each operator of a table, or None if it can't be split.

    It can't if it isn't in the form of ExecuTorch 1.4's table, or if one operator may refer to
    another.
    """
    if re.search("[&*]", table):
        return None
    operators, end = [], 0
    for match in _OPERATOR.finditer(table):
        if not _BETWEEN.fullmatch(table, end, match.start()):
            return None
        operators.append((match[1], match[0]))
        end = match.end()
    return operators if operators and _BETWEEN.fullmatch(table, end) else None
