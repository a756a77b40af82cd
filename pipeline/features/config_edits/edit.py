"""Puts members into a mapping of a YAML file, or removes them; every other byte stays the same.

A library that writes the YAML again (ruamel.yaml, say) would keep comments, but change indents,
quotes and line widths that nobody asked to change. So this module replaces text at the positions
that PyYAML reports for values. The caller must parse the result again, and check that it has
exactly the intended changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from pipeline.config.yaml import dump_flow
from pipeline.store.errors import join

_ALIAS = re.compile(r"[ \t]*\*[^\s,\]}]+")
_LONGEST = 72  # characters of a mapping on one line


def edit_members(
    text: str, path: str, keys: Sequence[str], members: Mapping[str, Any]
) -> str | None:
    """Return a YAML document with members of one mapping added, replaced or removed.

    Returns None if that can't be done without losing a comment.

    Args:
        path: the path of an existing mapping, as in `config.yaml.Node`; "" for the whole document.
        keys: the keys from there to the mapping with the members, which needn't exist.
        members: plain data by name; `...` removes a member.
    """
    node, entry, rest = _find_mapping(text, path, keys)
    if node is None:
        return None
    if not rest:
        for name, value in members.items():
            edited = _put_member(text, path, keys, name, value)
            if edited is None:
                return None
            text = edited
        return text
    added = {name: value for name, value in members.items() if value is not ...}
    if not added:
        return text
    for key in reversed(rest[1:]):
        added = {key: added}
    if entry is not None:
        return _replace(text, entry, added)
    return _insert(text, node, {rest[0]: added})


def _find_mapping(
    text: str, path: str, keys: Sequence[str]
) -> tuple[Any, Any, list[str]]:
    """Return the innermost existing mapping on the path `keys`, or None if the path has none.

    Also returns the entry in it that the next mapping replaces, or None if that key doesn't exist,
    and the keys still missing.
    """
    node = _find_node(yaml.compose(text, yaml.SafeLoader), path)
    if not isinstance(node, yaml.MappingNode):
        return None, None, []
    rest = list(keys)
    while rest:
        entry = _find_entry(node, rest[0])
        if entry is None or not isinstance(entry[1], yaml.MappingNode):
            return node, entry, rest
        node = entry[1]
        rest.pop(0)
    return node, None, []


def _find_node(node: Any, path: str) -> Any:
    """Return the node at a path such as `matrix.precision.int8`, or None if there is none."""
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


def _find_entry(node: yaml.MappingNode, name: str) -> Any:
    for entry in node.value:
        if entry[0].value == name:
            return entry
    return None


def _put_member(
    text: str, path: str, keys: Sequence[str], name: str, value: Any
) -> str | None:
    """Add a member to an existing mapping, replace its value, or remove it."""
    node, _, _ = _find_mapping(text, path, keys)
    entry = _find_entry(node, name)
    if entry is None:
        return text if value is ... else _insert(text, node, {name: value})
    return _remove(text, node, entry) if value is ... else _replace(text, entry, value)


def _replace(text: str, entry: Any, value: Any) -> str | None:
    """Return the text with an entry's value replaced, or None if that would lose a comment."""
    start, end = _find_text(text, entry)
    is_block = isinstance(entry[1], yaml.CollectionNode) and not entry[1].flow_style
    if is_block and "#" in text[start:end]:
        return None
    return f"{text[:start]} {dump_flow(value)}{text[end:]}"


def _find_text(text: str, entry: Any) -> tuple[int, int]:
    """Return the start of an entry's value in the text, just after the colon, and its end."""
    key, member = entry
    colon = text.index(":", key.end_mark.index) + 1
    alias = _ALIAS.match(text, colon)
    if alias:
        return colon, alias.end()
    return colon, max(colon, _find_end(text, member))


def _find_end(text: str, node: Any) -> int:
    """Return the end of a node in the text.

    PyYAML's end mark of a block is the start of the next token, behind any comments.
    """
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        end: int = node.end_mark.index
        return len(text[:end].rstrip())
    last = node.value[-1]
    if isinstance(node, yaml.MappingNode):
        return _find_text(text, last)[1]
    return _find_end(text, last)


def _insert(text: str, node: Any, members: Mapping[str, Any]) -> str:
    """Insert members after the last member of a mapping, in the same style."""
    if node.flow_style:
        end = node.end_mark.index - 1
        inside = text[:end].rstrip()
        comma = ", " if node.value and not inside.endswith(",") else ""
        return f"{inside}{comma}{dump_flow(members)[1:-1]}{text[end:]}"
    indent = " " * node.value[0][0].start_mark.column
    end = _find_line_end(text, _find_end(text, node))
    lines = "".join(f"\n{indent}{line}" for line in _write_block(members))
    return text[:end] + lines + text[end:]


def _write_block(members: Mapping[str, Any]) -> list[str]:
    """Write each member on a line, and a mapping over several lines if one would be too long."""
    lines = []
    for name, value in members.items():
        line = f"{dump_flow(name)}: {dump_flow(value)}"
        if isinstance(value, Mapping) and len(line) > _LONGEST:
            lines.append(f"{dump_flow(name)}:")
            lines += [f"  {inner}" for inner in _write_block(value)]
        else:
            lines.append(line)
    return lines


def _remove(text: str, node: Any, entry: Any) -> str:
    """Return the text without an entry of a mapping; a mapping without entries stays, as `{}`."""
    start = entry[0].start_mark.index
    end = _find_text(text, entry)[1]
    if len(node.value) == 1 and not node.flow_style:
        return f"{text[:start]}{{}}{text[end:]}"
    if not node.flow_style:
        line_start = text.rfind("\n", 0, start) + 1
        return text[:line_start] + text[_find_line_end(text, end) + 1 :]
    after = re.match(r"\s*,\s*", text[end:])
    if after:
        return text[:start] + text[end + after.end() :]
    return re.sub(r",\s*$", "", text[:start]) + text[end:]


def _find_line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end
