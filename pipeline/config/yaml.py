"""YAML without its traps: what two readers could take for different things is an error.

Reads one mapping, list or value, with the place where each value in it was written, and reports
every mistake with its path and its line. Scalars are read as YAML 1.2 (the core schema) and JSON
read them; what YAML 1.1 takes for something else (`on`, `010`, `1_000`, `1:30`) must be quoted or
written another way. Knows nothing of what the data means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from pipeline.store.errors import ConfigErrors, Problem, join

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


class Mark(NamedTuple):
    """Where a value was written: its path there, and the line, from 1, of its key, or of itself in
    a list; 0 for a file as a whole."""

    file: str
    line: int
    path: str

    def problem(self, what: str, known: str = "") -> Problem:
        return Problem(self.file, self.path, what, known, self.line)


@dataclass(frozen=True, eq=False)
class Node:
    """A value and where it was written.

    Attributes:
        value: a scalar, a dictionary of nodes or a list of nodes. Nodes that are aliases of one
            anchor have one and the same.
        plain: whether it is a text without quotes, which could have been another scalar.
        takes: whether it is an empty value that takes away what stood below it.
        source: how a value that variables made was written.
    """

    value: Any
    mark: Mark
    plain: bool = False
    takes: bool = False
    source: str = ""


def load_nodes(content: bytes, file: str) -> Node | None:
    """What a YAML file holds; None where that is nothing. Raises ConfigErrors."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _error(file, line, "is not UTF-8 text", "save the file as UTF-8") from error
    try:
        _check_depth(text, file)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        problems = [Mark(file, line, path).problem(*told) for line, path, told in _mistakes(root)]
        if problems:
            raise ConfigErrors(problems)
        return Node(_Builder(loader, file).value(root, ""), Mark(file, 0, ""))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"holds the character #x{error.character:04x}, which YAML does not allow"
        raise _error(file, line, what) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f"{error.context}, " if error.context else ""
        line = mark.line + 1 if mark else 0
        raise _error(file, line, f"is not valid YAML: {context}{error.problem}") from error
    except yaml.YAMLError as error:
        raise _error(file, 0, f"is not valid YAML: {error}".splitlines()[0]) from error


def plain(node: Node) -> Any:
    """The plain data of a node; what is one object in it is one in the data."""
    made: dict[int, Any] = {}

    def data(value: Any) -> Any:
        if not isinstance(value, dict | list):
            return value
        if id(value) not in made:
            made[id(value)] = (
                {key: data(each.value) for key, each in value.items()}
                if isinstance(value, dict)
                else [data(each.value) for each in value]
            )
        return made[id(value)]

    return data(node.value)


def read_scalar(text: str) -> Any:
    """What a text would be if it stood in a file without quotes. Raises ValueError, with what is
    wrong and what to do, where YAML 1.1 takes it for something else than YAML 1.2."""
    tag = next((tag for tag, pattern in _SCALARS.items() if pattern.match(text)), _TEXT)
    if tag == _AMBIGUOUS:
        raise ValueError(*_ambiguous(text))
    if tag in (_TEXT, _MERGE):
        return text
    try:
        return _Loader("").construct_object(yaml.ScalarNode(tag, text))
    except ValueError as error:
        raise ValueError(f"is not valid YAML: {error}", "") from error


def key_text(name: str) -> str:
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


class _Builder:
    """Makes nodes of a YAML document without mistakes. The value of an anchor is made once: a
    document may hold it thousands of times."""

    def __init__(self, loader: Any, file: str) -> None:
        self._loader = loader
        self._file = file
        self._made: dict[int, Any] = {}  # by node
        self._heights: dict[int, int] = {}  # by list or dictionary

    def value(self, node: Any, path: str) -> Any:
        if id(node) not in self._made:
            made: Any
            if isinstance(node, yaml.ScalarNode):
                made = self._scalar(node)
            elif isinstance(node, yaml.SequenceNode):
                made = [
                    self._node(item, _line(item), join(path, index))
                    for index, item in enumerate(node.value)
                ]
            else:
                made = self._mapping(node, path)
            self._check_height(node, made)
            self._made[id(node)] = made
        return self._made[id(node)]

    def _node(self, node: Any, line: int, path: str) -> Node:
        value = self.value(node, path)
        unquoted = isinstance(value, str) and isinstance(node, yaml.ScalarNode) and not node.style
        return Node(value, Mark(self._file, line, path), unquoted)

    def _scalar(self, node: Any) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # a number of thousands of digits
            raise _error(self._file, _line(node), f"is not valid YAML: {error}") from error

    def _mapping(self, node: Any, path: str) -> dict[Any, Node]:
        """What is merged (`<<`) comes first, and gives way to the mapping's own members."""
        merged: dict[Any, Node] = {}
        own: dict[Any, Node] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for source in reversed(sources):
                    merged.update(self.value(source, path))
            else:
                name = self._scalar(key)
                own[name] = self._node(value, _line(key), join(path, name))
        return {**merged, **own}

    def _check_height(self, node: Any, value: Any) -> None:
        """Of a value with its aliases, which can nest deeper than the file does."""
        if not isinstance(value, dict | list):
            return
        members = value.values() if isinstance(value, dict) else value
        height = 1 + max((self._heights.get(id(each.value), 0) for each in members), default=0)
        if height > _MAX_DEPTH:
            raise _error(self._file, _line(node), f"is nested more than {_MAX_DEPTH} deep")
        self._heights[id(value)] = height


def _check_depth(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _error(file, _line(event), f"is nested more than {_MAX_DEPTH} deep")


# Line, path, and what is wrong, with what would be right.
_Mistake = tuple[int, str, tuple[str, ...]]


def _mistakes(root: Any) -> Iterator[_Mistake]:
    """Each trap in a node and below it; an alias counts once."""
    seen: set[int] = set()
    inside: set[int] = set()

    def walk(node: Any, path: str) -> Iterator[_Mistake]:
        if id(node) in inside:
            yield _line(node), path, ("holds itself",)
            return
        if id(node) in seen:
            return
        seen.add(id(node))
        inside.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield from _mistakes_of_scalar(node, path)
        elif node.tag not in (f"{_YAML}map", f"{_YAML}seq"):
            yield _mistake_of_tag(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield from walk(item, join(path, index))
        else:
            yield from members(node, path)
        inside.discard(id(node))

    def members(node: Any, path: str) -> Iterator[_Mistake]:
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            line = _line(key)
            if not isinstance(key, yaml.ScalarNode):
                yield line, path, ("has a key that is no text",)
                continue
            yield from walk(key, path)
            name = (key.tag, key.value)
            if name in lines:
                yield line, path, (f"{key.value!r} is there twice, first in line {lines[name]}",)
            lines.setdefault(name, line)
            if key.tag == _MERGE:
                yield from _mistakes_of_merge(value, path)
            yield from walk(value, join(path, key.value))

    return walk(root, "")


def _mistakes_of_merge(value: Any, path: str) -> Iterator[_Mistake]:
    sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(source, yaml.MappingNode) for source in sources):
        yield _line(value), path, ("`<<` must be a mapping or a list of mappings",)


def _mistakes_of_scalar(node: Any, path: str) -> Iterator[_Mistake]:
    if node.tag == _AMBIGUOUS:
        yield _line(node), path, _ambiguous(node.value)
    elif node.tag != _TEXT:
        pattern = _SCALARS.get(node.tag)
        if pattern is None or not pattern.match(node.value):
            yield _mistake_of_tag(node, path)


def _ambiguous(text: str) -> tuple[str, str]:
    """What is wrong with it, and what to do."""
    better = "true or false" if text.isalpha() else "a decimal number"
    what = f"`{text}` is one thing in YAML 1.1 and another in 1.2"
    return what, f"write {better}, or quote it if it is text"


def _mistake_of_tag(node: Any, path: str) -> _Mistake:
    tag = node.tag.replace(_YAML, "!!")
    return _line(node), path, (f"has the tag {tag!r}", "leave the tag out")


def _line(node: Any) -> int:
    return node.start_mark.line + 1


def _error(file: str, line: int, what: str, known: str = "") -> ConfigErrors:
    return ConfigErrors([Problem(file, "", what, known, line)])
