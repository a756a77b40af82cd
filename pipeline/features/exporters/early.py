"""Mistakes that are seen before a model is exported, which can take minutes.

Only what no export could accept is refused here. The shapes and dtypes of examples are compared
with the programs that were just exported and not with those of the last export: the file that
gives the examples gives the programs too, so who edits one may have edited the other. Nor are
`example_inputs` and the others called before `export_methods`: they may use what that leaves
behind, and would draw random numbers before it. Their form can be wrong for sure without a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType

from pipeline.features.exporters.exporter import name_file
from pipeline.store.errors import SourceError

# The functions that are called after the export, with the arguments that they get by place.
_LATER = {
    "example_inputs": ("method",),
    "calibration_inputs": ("method",),
    "reference": ("method",),
    "constant_methods": (),
}


def check_syntax(
    path: Path, text: bytes, describe: Callable[[BaseException], str]
) -> None:
    """Raise SourceError for an exporter that Python can't compile, before torch is warmed up for
    it. Nothing of it runs.

    Args:
        describe: makes the text of the error.
    """
    if path.suffix != ".py":
        return
    try:
        compile(text, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise SourceError(describe(error)) from error


def check_arities(module: ModuleType) -> None:
    """Raise SourceError for functions of an exporter that can't be called as they will be, once it
    was imported and before it exports anything. All of them are reported."""
    rebound = {name for code in _iter_codes(module) for name in _find_rebound(code)}
    mistakes: list[str] = []
    for name, arguments in _LATER.items():
        function = getattr(module, name, None)
        if name not in rebound and inspect.isfunction(function):
            mistake = _check_arity(function, arguments)
            if mistake:
                mistakes.append(f"{name_file(module)}: {name}(): {mistake}")
    if mistakes:
        raise SourceError(*mistakes)


def _check_arity(function: Callable[..., object], arguments: tuple[str, ...]) -> str:
    """Say why a function doesn't take arguments by place; "" where it does. Parameters of `export`
    are given by name, so what it takes beyond is not looked at."""
    try:
        inspect.signature(function, follow_wrapped=False).bind_partial(*arguments)
    except TypeError:
        names = ", ".join(inspect.signature(function).parameters) or "nothing"
        takes = ", ".join(arguments) or "nothing"
        return f"takes {names}, must take {takes}; write `def {function.__name__}({takes}):`"
    return ""


def _iter_codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of the functions and the methods of a module."""
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (
                v.__code__ for v in vars(value).values() if inspect.isfunction(v)
            )
        elif inspect.isfunction(value):
            yield value.__code__


def _find_rebound(code: CodeType) -> Iterator[str]:
    """Yield the names that a function may bind anew while it exports, by `global` or as texts."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        if isinstance(constant, CodeType):
            yield from _find_rebound(constant)
