"""Puts members into a mapping of a YAML file, and leaves every other byte as it is.

A library that writes YAML anew would keep comments, but not the width of lines, quotes and spaces.
So a few words are inserted where PyYAML's reader says that the mapping is. Whoever calls this reads
the file again, and looks whether it then says what it should.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from pipeline.store.errors import join

_LONGEST = 72  # characters of a mapping on one line


def add_members(
    text: str, path: str, keys: Sequence[str], members: Mapping[str, Any]
) -> str | None:
    """Return a YAML document with members added to one of its mappings, or in place of others of
    their names; None where that can't be done by an insertion.

    Args:
        path: of a mapping that is there, as a `config.yaml.Node` has it; "" for the whole document.
        keys: those that lead from there to the mapping with the members, which need not be there.
    """
    node = _find_node(yaml.compose(text, yaml.SafeLoader), path)
    rest = list(keys)
    while rest and isinstance(node, yaml.MappingNode):
        inner = _get_member(node, rest[0])
        if inner is None:
            break
        node = inner
        rest.pop(0)
    if not isinstance(node, yaml.MappingNode):
        return None
    if rest:
        return _insert(text, node, _nest(rest, dict(members)))
    for name, value in members.items():
        # Parsed again for each member, since each insertion moves what is behind it.
        replaced = _put_member(text, path, keys, name, value)
        if replaced is None:
            return None
        text = replaced
    return text


def _put_member(
    text: str, path: str, keys: Sequence[str], name: str, value: Any
) -> str | None:
    """Add one member to a mapping that is there, or replace its value."""
    node: Any = _find_node(yaml.compose(text, yaml.SafeLoader), path)
    for key in keys:
        node = _get_member(node, key)
    present = _get_member(node, name)
    if present is None:
        return _insert(text, node, {name: value})
    start, end = present.start_mark.index, _find_end(present)
    if isinstance(present, yaml.CollectionNode) and not present.flow_style:
        (key,) = [key for key, _ in node.value if key.value == name]
        start = text.index(":", key.end_mark.index) + 1
        if "#" in text[start:end]:  # its comments would go
            return None
        return f"{text[:start]} {_write_flow(value)}{text[end:]}"
    return text[:start] + _write_flow(value) + text[end:]


def _find_node(node: Any, path: str) -> Any:
    """Return the node of a path, such as `matrix.precision.int8`; None where there is none."""
    for place, inner in _iter_nodes(node, ""):
        if place == path:
            return inner
    return None


def _iter_nodes(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _iter_nodes(value, join(path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _iter_nodes(value, join(path, number))


def _get_member(node: yaml.MappingNode, name: str) -> Any:
    for key, value in node.value:
        if key.value == name:
            return value
    return None


def _nest(keys: Sequence[str], members: dict[str, Any]) -> dict[str, Any]:
    for key in reversed(keys):
        members = {key: members}
    return members


def _insert(text: str, node: yaml.MappingNode, members: dict[str, Any]) -> str:
    """Insert members behind the last of a mapping, in its style."""
    if node.flow_style:
        words = _write_flow(members)[1:-1]
        if not node.value:
            place = node.start_mark.index + 1
            return text[:place] + words + text[place:]
        place = node.value[-1][1].end_mark.index
        return f"{text[:place]}, {words}{text[place:]}"
    indent = " " * node.value[0][0].start_mark.column
    end = _find_end(node)
    line_end = text.find("\n", end)
    if line_end < 0:
        line_end = len(text)
    lines = "".join(f"\n{indent}{line}" for line in _write_block(members))
    return text[:line_end] + lines + text[line_end:]


def _find_end(node: Any) -> int:
    """Return the offset behind the last character of a node: a block's own mark is that of what
    follows it, comments included."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _find_end(last[1] if isinstance(node, yaml.MappingNode) else last)
    end: int = node.end_mark.index
    return end


def _write_flow(value: Any) -> str:
    """Write a value on one line, as `{head: none}`."""
    text: str = yaml.safe_dump(
        # Without breaks: a second line would need the indent of its place.
        value,
        default_flow_style=True,
        sort_keys=False,
        width=2**30,
    )
    # PyYAML ends a lone scalar with the mark of a document's end.
    return text.removesuffix("\n").removesuffix("\n...")


def _write_block(members: Mapping[str, Any]) -> list[str]:
    """Write members on lines of their own, and a mapping on one line if that is short."""
    lines = []
    for name, value in members.items():
        line = f"{_write_flow(name)}: {_write_flow(value)}"
        if isinstance(value, Mapping) and len(line) > _LONGEST:
            lines.append(f"{_write_flow(name)}:")
            lines += [f"  {inner}" for inner in _write_block(value)]
        else:
            lines.append(line)
    return lines
