"""`doit plan --resolved`: what a package finally gets, value by value, and where each was written.

What is printed is a config: parsed again, it resolves to the same. What has no value stands there
as a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.backends import Options, PartitionerSpec
from pipeline.compose import Document
from pipeline.config import PackageConfig, PassSpec
from pipeline.errors import join
from pipeline.strict_yaml import read_scalar

_INDENT = "  "


class _Row(NamedTuple):
    """A line; `path` leads to its value in the document, or is empty where it has none."""

    text: str
    path: str = ""


def resolved_view(config: PackageConfig, document: Document) -> Iterator[str]:
    rows = list(_of_model(config, "", ""))
    width = max(len(row.text) for row in rows)
    yield f"# {config.package}: {document.file}"
    for row in rows:
        yield f"{row.text:<{width}}  # {_origin(document, row.path)}" if row.path else row.text


def _origin(document: Document, path: str) -> str:
    """File and line; of what stands below another key there, such as `defaults`, that one; and how
    a value with variables was written."""
    node = document.written(path)
    if node is None:
        return "default"
    mark = node.mark
    here, there = path.split("."), mark.path.split(".")
    while here and there and here[-1] == there[-1]:
        here, there = here[:-1], there[:-1]
    words = [f"{mark.file}:{mark.line}", ".".join(there), node.source]
    return ", ".join(word for word in words if word)


def _of_model(model: Options, path: str, indent: str) -> Iterator[_Row]:
    for name, info in type(model).model_fields.items():
        key = info.alias or name
        if path or key != "package":  # that is the name of the file, or of one of a matrix
            yield from _of_member(key, getattr(model, name), join(path, key), indent)


def _of_member(key: str, value: Any, path: str, indent: str) -> Iterator[_Row]:
    name = _key(key)
    if value is None:
        yield _Row(f"{indent}# {name}: none", path)
    elif isinstance(value, Options):
        rows = list(_of_model(value, path, indent + _INDENT))
        yield _Row(f"{indent}{name}:" if _says_something(rows) else f"{indent}{name}: {{}}")
        yield from rows
    elif isinstance(value, dict) and value:
        yield _Row(f"{indent}{name}:")
        for each, inner in value.items():
            yield from _of_member(each, inner, join(path, each), indent + _INDENT)
    elif isinstance(value, list | tuple) and any(isinstance(each, Options) for each in value):
        yield _Row(f"{indent}{name}:")
        for index, each in enumerate(value):
            yield from _of_item(each, join(path, index), indent + _INDENT)
    else:
        yield _Row(f"{indent}{name}: {_flow(value)}", path)


def _of_item(item: PartitionerSpec | PassSpec, path: str, indent: str) -> Iterator[_Row]:
    """A name, or one as a key with its options."""
    if isinstance(item, PassSpec):
        options = f": {_flow(item.options)}" if item.options else ""
        yield _Row(f"{indent}- {_key(item.reference)}{options}", path)
        return
    inner, deeper = join(path, item.name), indent + 2 * _INDENT
    rows = list(_of_model(item.options, inner, deeper))
    for name in type(item).model_fields:  # what is written among the options of any backend
        if name not in ("name", "options"):
            rows += _of_member(name, getattr(item, name), join(inner, name), deeper)
    yield _Row(f"{indent}- {item.name}{':' if _says_something(rows) else ''}", path)
    yield from rows


def _says_something(rows: list[_Row]) -> bool:
    return any(not row.text.lstrip().startswith("#") for row in rows)


def _flow(value: Any) -> str:
    """On one line, as YAML and what fills in variables read it again."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _key(value.replace("$", "$$")) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    """A text as YAML reads it again, without quotes where it can be."""
    if re.fullmatch(r"[A-Za-z][\w.-]*(:[\w-]+)*", name, re.ASCII) and _is_text(name):
        return name
    return '"' + "".join(map(_escaped, name)) + '"'


def _is_text(value: str) -> bool:
    try:
        return read_scalar(value) == value
    except ValueError:
        return False


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
