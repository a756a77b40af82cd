"""Strict YAML: anything that two readers could interpret differently is an error.

Reads one mapping, list or value, records where each value was written, and reports every mistake
with its path and line. Scalars are read as in YAML 1.2 (the core schema) and JSON. Values that mean
something else in YAML 1.1 (`on`, `010`, `1_000`, `1:30`) must be quoted or written another way.
Knows nothing about the meaning of the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.moments import call_all
from pipeline.store.errors import ConfigErrors, Problem, join

_MOST_VALUES = 20_000  # in a document, counting each alias
_LONGEST_NUMBER = 100  # characters; no valid number has more than 64 bits
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


class _YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = {None: list(_SCALARS.items())}  # noqa: RUF012


@dataclass(frozen=True, eq=False)
class Node:
    """A value and where it was written.

    Attributes:
        value: a scalar, a dictionary of nodes or a list of nodes. Aliases of an anchor share one
            object.
        file: the file that holds it.
        path: its path in the file.
        line: the line, from 1, of its key, or of the value itself in a list; 0 for the whole file.
        plain: whether it is an unquoted text, which could have been another scalar.
        takes: whether it is an empty value that removed a value below it.
        source: how a value filled in from variables was written.
    """

    value: Any
    file: str
    path: str
    line: int
    plain: bool = False
    takes: bool = False
    source: str = ""

    def with_value(
        self, value: Any, plain: bool = False, takes: bool = False, source: str = ""
    ) -> Node:
        """Return a node at the same place with another value."""
        return Node(value, self.file, self.path, self.line, plain, takes, source)

    def problem(self, fault: str, hint: str = "") -> Problem:
        """Return a problem about the value, with its place."""
        return Problem(self.file, self.path, fault, hint, self.line)


def load_nodes(content: bytes, file: str) -> Node | None:
    """Read a YAML file, or return None if it is empty. Raises ConfigErrors."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _error(
            file, line, "is not UTF-8 text", "save the file as UTF-8"
        ) from error
    try:
        _check_depth(text, file)
        root = _YamlLoader(text).get_single_node()
        if root is None:
            return None
        constructor = _Constructor(file)
        value = constructor.value(root, "")
        if constructor.problems:
            raise ConfigErrors(constructor.problems)
        return Node(value, file, "", 0)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = (
            f"contains the character #x{error.character:04x}, which YAML does not allow"
        )
        raise _error(file, line, fault) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f"{error.context}, " if error.context else ""
        line = mark.line + 1 if mark else 0
        for explained_line, fault, remedy in call_all("explain_syntax", text, error):
            if fault:
                raise _error(file, explained_line, fault, remedy) from error
        # From 0.2.6 on, libyaml has its own limit (1,000), and looks that far ahead in a line.
        if error.problem == "exceeded maximum nesting depth":
            raise _too_deep(file, line) from error
        raise _error(
            file,
            line,
            f"is not valid YAML: {context}{error.problem}",
        ) from error


def plain(node: Node) -> Any:
    """Return the plain data of a node; an object that occurs several times stays one object."""
    copies: dict[int, Any] = {}

    def data(node: Node) -> Any:
        return map_members(node.value, data, copies)

    return data(node)


def map_members(
    value: Any, change: Callable[[Node], Any], copies: dict[int, Any]
) -> Any:
    """Copy a list or dictionary of nodes with each member changed; return any other value as it is.

    Removed members are left out. `copies`, keyed by identity, keeps repeated objects shared.
    """
    if not isinstance(value, dict | list):
        return value
    if id(value) in copies:
        return copies[id(value)]
    copy: Any
    if isinstance(value, dict):
        copy = {
            key: change(member) for key, member in value.items() if not member.takes
        }
    else:
        copy = [change(member) for member in value]
    copies[id(value)] = copy
    return copy


def read_scalar(text: str) -> Any:
    """Read a string as an unquoted scalar.

    Raises ValueError, with the fault and a remedy, if YAML 1.1 and 1.2 read it differently.
    """
    tag = next(
        (tag for tag, pattern in _SCALARS.items() if pattern.match(text)),
        _TEXT,
    )
    if tag == _AMBIGUOUS:
        raise ValueError(*_ambiguous(text))
    try:
        return _construct(tag, text)
    except ValueError as error:
        raise ValueError(f"is not valid YAML: {error}", "") from error


def dump_flow(value: Any) -> str:
    """Write plain data on one line, so that `load_nodes` reads the same data."""
    options: Any = {
        "default_flow_style": True,
        "allow_unicode": True,
        "sort_keys": False,
    }
    text = yaml.dump(
        value,
        Dumper=Dumper,
        width=2**31,
        **options,
    )
    return text.removesuffix("...\n").strip()


class Dumper(yaml.SafeDumper):
    """Writes plain data so that `load_nodes` reads the same data."""

    yaml_implicit_resolvers = _YamlLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            _TEXT,
            text,
            style=None if text.isprintable() else '"',
        )


Dumper.add_representer(str, Dumper.represent_text)


class _Constructor:
    """Turns the composed nodes of one YAML document into `Node`s, and collects its mistakes.

    The value of an anchor is constructed once: a document may repeat it thousands of times.
    """

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._values: dict[int, Any] = {}  # by composed node
        self._open: set[int] = set()
        self._heights: dict[int, int] = {}  # by list or dictionary
        self._sizes: dict[int, int] = {}

    def value(self, node: Any, path: str) -> Any:
        if id(node) in self._open:
            self._wrong(node, path, "holds itself")
            return {}
        if id(node) not in self._values:
            self._open.add(id(node))
            if isinstance(node, yaml.ScalarNode):
                make = self._scalar
            else:
                make = self._collection
            self._values[id(node)] = make(node, path)
            self._open.discard(id(node))
        return self._values[id(node)]

    def _node(self, node: Any, line: int, path: str) -> Node:
        value = self.value(node, path)
        unquoted = (
            isinstance(value, str)
            and isinstance(node, yaml.ScalarNode)
            and not node.style
        )
        return Node(value, self._file, path, line, unquoted)

    def _scalar(self, node: Any, path: str) -> Any:
        if node.tag == _AMBIGUOUS:
            self._wrong(node, path, *_ambiguous(node.value))
        elif node.tag != _TEXT and not (
            node.tag in _SCALARS and _SCALARS[node.tag].match(node.value)
        ):
            self._wrong_tag(node, path)
        else:
            try:
                return _construct(node.tag, node.value)
            except ValueError as error:  # a number of hundreds of digits
                raise _error(
                    self._file,
                    _line(node),
                    f"is not valid YAML: {error}",
                ) from error
        return node.value

    def _collection(self, node: Any, path: str) -> Any:
        if node.tag not in (f"{_YAML}map", f"{_YAML}seq"):
            self._wrong_tag(node, path)
        value: Any
        if isinstance(node, yaml.SequenceNode):
            value = []
            for number, member in enumerate(node.value):
                value.append(self._node(member, _line(member), join(path, number)))
        else:
            value = self._mapping(node, path)
        # With aliases expanded, it can nest deeper than the file does.
        members = value if isinstance(value, list) else value.values()
        height = size = 1
        for member in members:
            height = max(height, 1 + self._heights.get(id(member.value), 0))
            size += self._sizes.get(id(member.value), 1)
        if height > _MAX_DEPTH:
            raise _too_deep(self._file, _line(node))
        self._heights[id(value)] = height
        if size > _MOST_VALUES:
            fault = f"expands to more than {_MOST_VALUES:,} values, aliases included"
            raise _error(self._file, _line(node), fault)
        self._sizes[id(value)] = size
        return value

    def _mapping(self, node: Any, path: str) -> dict[Any, Node]:
        """Construct a mapping; its own members override those merged with `<<`."""
        merged: dict[Any, Node] = {}
        members: dict[Any, Node] = {}
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._wrong(key, path, "has a key that is not a string")
                continue
            name = self._scalar(key, path)
            written = (key.tag, key.value)
            if written in lines:
                fault = f"{key.value!r} occurs twice, first in line {lines[written]}"
                self._wrong(key, path, fault)
            lines.setdefault(written, _line(key))
            if key.tag == _MERGE:
                merged = self._merged(value, path)
            else:
                members[name] = self._node(value, _line(key), join(path, name))
        return {**merged, **members}

    def _merged(self, node: Any, path: str) -> dict[Any, Node]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(source, yaml.MappingNode) for source in sources):
            self._wrong(node, path, "`<<` must be a mapping or a list of mappings")
            return {}
        merged: dict[Any, Node] = {}
        for source in reversed(sources):
            merged |= self.value(source, path)
        return merged

    def _wrong(self, node: Any, path: str, fault: str, hint: str = "") -> None:
        self.problems.append(Problem(self._file, path, fault, hint, _line(node)))

    def _wrong_tag(self, node: Any, path: str) -> None:
        tag = node.tag.replace(_YAML, "!!")
        self._wrong(node, path, f"has the tag {tag!r}", "leave the tag out")


def _check_depth(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, _YamlLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _too_deep(file, _line(event))


def _construct(tag: str, text: str) -> Any:
    """Construct a scalar. Raises ValueError for a number with hundreds of digits."""
    if tag in (_TEXT, _MERGE):
        return text
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of more than {_LONGEST_NUMBER} characters")
    return yaml.constructor.SafeConstructor().construct_document(
        yaml.ScalarNode(tag, text)
    )


def _ambiguous(text: str) -> tuple[str, str]:
    """Return the fault of an ambiguous text, and the remedy."""
    better = "a decimal number"
    if text.isalpha():
        better = "true or false"
    fault = f"`{text}` has different meanings in YAML 1.1 and 1.2"
    return fault, f"write {better}, or quote it if it is a string"


def _line(node: Any) -> int:
    line: int = node.start_mark.line + 1
    return line


def _too_deep(file: str, line: int) -> ConfigErrors:
    return _error(file, line, f"is nested more than {_MAX_DEPTH} levels deep")


def _error(file: str, line: int, fault: str, hint: str = "") -> ConfigErrors:
    return ConfigErrors([Problem(file, "", fault, hint, line)])
