"""Describes the callables that take options: `python -m tools.describe_constructors`.

Writes constructors.json into the folder of each family of backends, so that the plan needn't import
torch. With an ExecuTorch release other than the first, it writes only the differences from the
first. It reads the installed source and imports none of it: some backends can't be imported without
a vendor's SDK, and Qualcomm's tries to download one.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.backends.families import find_families, find_files, find_folder
from pipeline.backends.host import package_folders
from pipeline.features.constructor_options.constructors import DESCRIPTION, constructors
from pipeline.store.releases import RELEASES, installed_release

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def description(targets: Iterable[str]) -> dict[str, Any]:
    """Return the versions of the packages, and the parameters or keys of each target.

    A target has [] if the installed release lacks its backend.

    Raises:
        LookupError: any other target is missing from the installed source.
    """
    described = {target: describe_present(target) for target in sorted(set(targets))}
    return _add_versions(described)


def _add_versions(described: Mapping[str, Any]) -> dict[str, Any]:
    packages = {target.partition(".")[0] for target in described}
    return {
        "versions": {package: version(package) for package in sorted(packages)},
        "callables": described,
    }


def targets(family: str) -> list[str]:
    """Return the targets of a family of backends."""
    path = find_folder(family) / "constructors.toml"
    if not path.is_file():
        return []
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [row["target"] for row in table["constructors"]]


def describe_present(target: str) -> list[dict[str, Any]]:
    """Return `describe(target)`, or [] if the installed release lacks the target's backend."""
    stages = [stage for row in constructors() if row.target == target for stage in row.stages]
    backends = {stage.partition(".")[0] for stage in stages}
    if backends and backends <= installed_release().lacks.keys():
        return []
    return describe(target)


def describe(target: str) -> list[dict[str, Any]]:
    """Return the parameters of `module:function`, `module:Class` or `module:Class.method`.

    A target may end in `[expression]`, naming a mapping or a key of one. Then return the keys that
    the code reads.
    """
    module, _, rest = target.partition(":")
    path, _, expression = rest.removesuffix("]").partition("[")
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    body, found = tree.body, None
    for name in path.split(".") if path else ():
        found = _find(body, name)
        if found is None:
            raise LookupError(f"{target}: {name} is not in the installed source")
        body = found.body if isinstance(found, ast.ClassDef) else []
    if expression:
        keys = list(_keys(tree, found or tree, expression))
        if not keys:
            raise LookupError(f"{target}: no key is read in the installed source")
        return keys
    if isinstance(found, ast.ClassDef):
        init = _find(found.body, "__init__")
        if isinstance(init, _Function):
            return list(_parameters(init, method=True))
        return list(_fields(found))
    assert isinstance(found, _Function)
    return list(_parameters(found, method="." in path))


def members(target: str) -> list[str]:
    """Return the names of an enumeration `module:Class`, in order."""
    module, _, name = target.partition(":")
    found = _find(ast.parse(source_of(module).read_text(encoding="utf-8")).body, name)
    if not isinstance(found, ast.ClassDef):
        raise LookupError(f"{target}: not in the installed source")
    assigned = (node for node in found.body if isinstance(node, ast.Assign))
    return [t.id for node in assigned for t in node.targets if isinstance(t, ast.Name)]


def source_of(module: str) -> Path:
    """Return the file of an installed package's module, without importing it.

    Raises:
        LookupError: there is no such file.
    """
    package, *rest = module.split(".")
    for folder in package_folders(package):
        path = folder.joinpath(*rest)
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
    decorators = (each for each in function.decorator_list if isinstance(each, ast.Name))
    static = any(each.id == "staticmethod" for each in decorators)
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


def _fields(dataclass: ast.ClassDef) -> Iterator[dict[str, Any]]:
    """Yield the constructor's fields of a dataclass or an attrs class."""
    for node in dataclass.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
            told = {each.arg: each.value for each in value.keywords}
            if "init" in told and ast.unparse(told["init"]) == "False":
                continue
            value = told.get("default", told.get("default_factory"))
        yield {"name": node.target.id, "kind": "positional", **_default(value)}


def _keys(module: ast.Module, scope: ast.AST, expression: str) -> Iterator[dict[str, Any]]:
    """Yield each key that the code reads from a mapping or compares with, in source order.

    Reads are `options["key"]`, `options.get("key", default)` and `"key" in options`; comparisons
    are `spec.key == "key"` and `spec.key in keys`.
    """
    constants = {**_constants(module.body), **_constants(ast.walk(scope))}
    found: dict[str, ast.expr | None] = {}
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.expr)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        default = None
        match node:
            case ast.Call(func=ast.Attribute(value=read, attr="get"), args=[key, *rest]):
                default = rest[0] if rest else None
            case ast.Subscript(value=read, slice=key, ctx=ast.Load()):
                pass
            case ast.Compare(left=key, ops=[ast.In()], comparators=[read]):
                if ast.unparse(key) == expression:
                    key, read = read, key
            case ast.Compare(left=read, ops=[ast.Eq()], comparators=[key]):
                pass
            case _:
                continue
        if ast.unparse(read) == expression:
            for name in _values(key, constants):
                found[name] = found.get(name) or default
    for name, default in found.items():
        yield {"name": name, "kind": "key", **_default(default)}


def _constants(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return the values of the names that are assigned."""
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _values(key: ast.expr, constants: Mapping[str, ast.expr]) -> list[str]:
    """Return the strings that a key can be, or [] if the source doesn't say."""
    if isinstance(key, ast.Name) and key.id in constants:
        key = constants[key.id]
    try:
        value = ast.literal_eval(key)
    except ValueError:
        return []
    if isinstance(value, str):
        return [value]
    several = value if isinstance(value, dict | list | tuple) else sorted(map(str, value))
    return [each for each in several if isinstance(each, str)]


def _parameter(each: ast.arg, kind: str, default: ast.expr | None) -> dict[str, Any]:
    return {"name": each.arg, "kind": kind, **_default(default)}


def _default(node: ast.expr | None) -> dict[str, Any]:
    """Return a default as plain JSON if possible, otherwise as code; {} if there is none."""
    if node is None:
        return {}
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (TypeError, ValueError):
        return {"code": ast.unparse(node)}
    return {"default": value}


def texts() -> dict[Path, str]:
    """Return the content of each family's file.

    With a release other than the first, return that of the one file that lists the differences.
    """
    release = installed_release()
    if release != RELEASES[0]:
        return {release.constructors: _to_text(_find_differences())}
    contents = {}
    for family in find_families():
        family_targets = targets(family)
        if family_targets:
            contents[find_folder(family) / DESCRIPTION] = _to_text(description(family_targets))
    return contents


def _find_differences() -> dict[str, Any]:
    """Return the descriptions that this release changes from those in the families' files."""
    all_targets = [target for family in find_families() for target in targets(family)]
    installed = description(all_targets)["callables"]
    for path in find_files(DESCRIPTION):
        first = json.loads(path.read_text(encoding="utf-8"))["callables"]
        for target, rows in first.items():
            if installed[target] == rows:
                del installed[target]
    return _add_versions(installed)


def _to_text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
