"""Mistakes that can be found before a model is exported, which can take minutes.

Only exporters that no export could accept are refused here. The shapes and dtypes of examples are
compared with the programs just exported, not with those of the last export: one file gives both the
examples and the programs, so an edit of one may go with an edit of the other. Nor are
`example_inputs` and the other functions called before `export_methods`: they may use state that it
leaves behind, and would draw random numbers before it. A wrong signature, though, can be detected
without a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType

from pipeline.features.exporters.exporter import name_file
from pipeline.store.errors import SourceError

# The functions that are called after the export, with their positional arguments.
_LATER = {
    "example_inputs": ("method",),
    "calibration_inputs": ("method",),
    "reference": ("method",),
    "constant_methods": (),
}


def check_syntax(
    path: Path, text: bytes, describe: Callable[[BaseException], str]
) -> None:
    """Raise SourceError if Python can't compile an exporter, before torch is warmed up for it.

    Nothing in the exporter runs.


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
    """Raise SourceError if functions of an exporter don't take the arguments they will get.

    The error lists all mistakes. Called after the exporter is imported and before it exports
    anything.
    """
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
    """Return why a function doesn't take its positional arguments, or "" if it does.

    Further parameters aren't checked, since those of `export` are passed by name.
    """
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
    """Yield the names that a function may rebind while it exports: its names and its strings."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        if isinstance(constant, CodeType):
            yield from _find_rebound(constant)
