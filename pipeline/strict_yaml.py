"""YAML without its traps: what two readers could take for different things is an error.

Reads one mapping, list or value, as plain Python data, and reports every mistake with its path and
its line. Scalars are read as YAML 1.2 (the core schema) and JSON read them; what YAML 1.1 takes for
something else (`on`, `010`, `1_000`, `1:30`) must be quoted or written another way. Knows nothing
of what the data means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigErrors, Problem

try:
    from yaml import CSafeLoader as BaseLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as BaseLoader  # type: ignore[assignment]

_MAX_DEPTH = 64  # libyaml's composer recurses, and overflows the C stack at some 40,000
_YAML = "tag:yaml.org,2002:"
_TEXT, _MERGE, _AMBIGUOUS = f"{_YAML}str", f"{_YAML}merge", "!ambiguous"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
# Tried in this order.
_SCALARS = {
    tag: re.compile(rf"(?:{pattern})\Z")
    for tag, pattern in {
        f"{_YAML}null": r"~|null|Null|NULL|",
        f"{_YAML}bool": r"true|True|TRUE|false|False|FALSE",
        _AMBIGUOUS: r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"
        r"|[-+]?0[0-9_]+|[-+]?0b[01_]+|0o[0-7]+|[-+]?[0-9]+(_[0-9]*)+(\.[0-9_]*)?"
        r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?",
        f"{_YAML}int": r"[-+]?(0|[1-9][0-9]*)|[-+]?0x[0-9a-fA-F]+",
        f"{_YAML}float": _FLOAT,
        _MERGE: r"<<",
    }.items()
}


class _Loader(BaseLoader):
    yaml_implicit_resolvers = {None: list(_SCALARS.items())}  # noqa: RUF012


def read_yaml(path: Path, file: str) -> object:
    """The data of a file, which messages call `file`. Raises ConfigErrors."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _error(file, "", f"cannot be read: {error.strerror}") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _error(file, f"line {line}", "is not UTF-8 text", "save the file as UTF-8") from error
    return load_yaml(text, file)


def load_yaml(text: str, file: str) -> object:
    """The data of a YAML text; None where there is none. Raises ConfigErrors."""
    try:
        _check_depth(text, file)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        problems = [Problem(file, *found) for found in _mistakes(root, "", set())]
        if problems:
            raise ConfigErrors(problems)
        return loader.construct_document(root)
    except yaml.reader.ReaderError as error:
        line = f"line {text.count(chr(10), 0, error.position) + 1}"
        what = f"holds the character #x{error.character:04x}, which YAML does not allow"
        raise _error(file, line, what) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f"{error.context}, " if error.context else ""
        place = f"line {mark.line + 1}" if mark else ""
        raise _error(file, place, f"is not valid YAML: {context}{error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _error(file, "", f"is not valid YAML: {error}".splitlines()[0]) from error


def join(path: str, key: object) -> str:
    """The path of a member: `methods.encode`, `partitioners[0]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if isinstance(key, str) and re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{path}.{name}" if path else str(name)


def _check_depth(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _error(file, f"line {_line(event)}", f"is nested more than {_MAX_DEPTH} deep")


def _mistakes(node: Any, path: str, seen: set[int]) -> Iterator[tuple[str, str, str]]:
    """Path, mistake and remedy of each trap in a node and below it; an alias counts once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield from _mistakes_of_scalar(node, path)
    elif node.tag not in (f"{_YAML}map", f"{_YAML}seq"):
        yield _mistake_of_tag(node, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _mistakes(item, join(path, index), seen)
    else:
        yield from _mistakes_of_mapping(node, path, seen)


def _mistakes_of_mapping(node: Any, path: str, seen: set[int]) -> Iterator[tuple[str, str, str]]:
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            yield path, f"has a key that is no text (line {_line(key)})", ""
            continue
        yield from _mistakes(key, path, seen)
        name = (key.tag, key.value)
        if name in lines:
            yield path, f"{key.value!r} is there twice, in lines {lines[name]} and {_line(key)}", ""
        lines.setdefault(name, _line(key))
        yield from _mistakes(value, join(path, key.value), seen)


def _mistakes_of_scalar(node: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if node.tag == _AMBIGUOUS:
        what = f"`{node.value}` (line {_line(node)}) is one thing in YAML 1.1 and another in 1.2"
        plain = "true or false" if node.value.isalpha() else "a decimal number"
        yield path, what, f"write {plain}, or quote it if it is text"
    elif node.tag != _TEXT:
        pattern = _SCALARS.get(node.tag)
        if pattern is None or not pattern.match(node.value):
            yield _mistake_of_tag(node, path)


def _mistake_of_tag(node: Any, path: str) -> tuple[str, str, str]:
    tag = node.tag.replace(_YAML, "!!")
    return path, f"has the tag {tag!r} (line {_line(node)})", "leave the tag out"


def _line(node: Any) -> int:
    return node.start_mark.line + 1


def _error(file: str, path: str, what: str, known: str = "") -> ConfigErrors:
    return ConfigErrors([Problem(file, path, what, known)])
