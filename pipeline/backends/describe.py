"""Describes the callables that options are handed to: `python -m pipeline.backends.describe`.

Writes `constructors.json`, which the plan reads instead of importing torch. Everything is read out
of the installed source and nothing of it is imported: some backends can't be imported without a
vendor's SDK, and Qualcomm's tries to download its own.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.backends.constructors import FILE

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def description(targets: Iterable[str]) -> dict[str, Any]:
    """Target to parameters, or to members where it is an enumeration. Raises LookupError for one
    that is not in the installed source."""
    return {
        "executorch": version("executorch"),
        "callables": {target: describe(target) for target in sorted(set(targets))},
    }


def targets() -> list[str]:
    """Those of the whole catalogue."""
    return [each.target for backend in BACKENDS.values() for each in backend.constructors]


def describe(target: str) -> list[dict[str, Any]]:
    """The parameters of `module:function`, `module:Class` or `module:Class.method`."""
    module, _, path = target.partition(":")
    body = ast.parse(source_of(module).read_text(encoding="utf-8")).body
    found: ast.stmt | None = None
    for name in path.split("."):
        found = _find(body, name)
        if found is None:
            raise LookupError(f"{target}: {name} is not in the installed source")
        body = found.body if isinstance(found, ast.ClassDef) else []
    if isinstance(found, ast.ClassDef):
        init = _find(found.body, "__init__")
        if isinstance(init, _Function):
            return list(_parameters(init, method=True))
        return list(_fields(found))
    assert isinstance(found, _Function)
    return list(_parameters(found, method="." in path))


def members(target: str) -> list[str]:
    """The names of an enumeration `module:Class`, in their order."""
    module, _, name = target.partition(":")
    found = _find(ast.parse(source_of(module).read_text(encoding="utf-8")).body, name)
    if not isinstance(found, ast.ClassDef):
        raise LookupError(f"{target}: not in the installed source")
    assigned = (node for node in found.body if isinstance(node, ast.Assign))
    return [t.id for node in assigned for t in node.targets if isinstance(t, ast.Name)]


def source_of(module: str) -> Path:
    """The file of a module of an installed package, of which nothing is imported."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    raise LookupError(f"{module}: not installed")


def _find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    named = (node for node in body if isinstance(node, ast.ClassDef | _Function))
    return next((node for node in named if node.name == name), None)


def _parameters(function: _Function, method: bool) -> Iterator[dict[str, Any]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in _decorators(function))
    for number, (each, default) in enumerate(
        zip(positional, [*padding, *arguments.defaults], strict=True)
    ):
        if number or not method or static:
            only = number < len(arguments.posonlyargs)
            yield _parameter(each, "positional only" if only else "positional", default)
    if arguments.vararg:
        yield _parameter(arguments.vararg, "any positional", None)
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(each, "keyword", default)
    if arguments.kwarg:
        yield _parameter(arguments.kwarg, "any keyword", None)


def _decorators(function: _Function) -> list[ast.expr]:
    return function.decorator_list


def _fields(dataclass: ast.ClassDef) -> Iterator[dict[str, Any]]:
    for node in dataclass.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield {"name": node.target.id, "kind": "positional", **_default(node.value)}


def _parameter(each: ast.arg, kind: str, default: ast.expr | None) -> dict[str, Any]:
    return {"name": each.arg, "kind": kind, **_default(default)}


def _default(node: ast.expr | None) -> dict[str, Any]:
    """Its value where that is plain JSON, else its code; nothing where there is none."""
    if node is None:
        return {}
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (TypeError, ValueError):
        return {"code": ast.unparse(node)}
    return {"default": value}


def text() -> str:
    return json.dumps(description(targets()), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
