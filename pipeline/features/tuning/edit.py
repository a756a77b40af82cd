"""Puts the alternatives of a trial into a config file. Every other line stays as it is, comments
and spaces too.

Only the text of a value is replaced, at the place where the YAML parser saw it. A library that
writes the whole document anew (ruamel.yaml, say) would change indents and quotes of lines that
nobody asked to change. What was edited is composed and compared with the trial before it is
written, so a file in which a text stands for several values (an anchor, say) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import yaml

from pipeline.config.yaml import Node, dump_flow, load_nodes, plain
from pipeline.features.tuning.space import (
    Space,
    compose_choice,
    compose_root,
    make_trial_data,
)
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.files import read_text_file, write_atomically

_ALIAS = re.compile(r"[ \t]*\*[^\s,\]}]+")
_Removal = object()  # of a value and its key


def write_choice(space: Space, trial: Trial) -> str:
    """Put the alternatives of a trial into the file of its package; return a line that says so.

    Raises:
        PipelineError: the file can't be edited without changing anything else.
    """
    file = f"{space.path.parent.name}/{space.path.name}"
    if trial.choice is None:
        return f"{file}: it is as in trial {trial.number}; nothing is written"
    before = read_text_file(space.path)
    aim = make_trial_data(compose_choice(space, trial.choice))
    for text in _list_edits(before.decode(), space.select(trial.choice)):
        # The text of a value may stand for others too: only what composes to the trial is written.
        if _compose_text(space, text.encode()) == aim:
            if text.encode() != before:
                write_atomically(space.path, text.encode())
            return f"{file}: trial {trial.number} is written"
    lines = [
        f"  {name}: {words}" for name, words in space.describe(trial.choice).items()
    ]
    fault = "can't be edited without changing other values; write these into it:"
    raise PipelineError(f"{file}: {fault}", *lines)


def _compose_text(space: Space, content: bytes) -> Any:
    """Return what a trial would hold if this were the file of the package; None for a text that
    makes no config."""
    try:
        root = load_nodes(content, space.path.name)
        if root is None:
            return None
        return make_trial_data(compose_root(space, root))
    except ConfigErrors:
        return None


def _list_edits(text: str, alternatives: Mapping[str, Node]) -> Iterator[str]:
    """Yield the texts in which alternatives are put: an empty one removes the key, or stands as
    `null` where a base or the defaults give it a value."""
    values = []
    for node in alternatives.values():
        values.append([_Removal, None] if node.value is None else [plain(node)])
    for combination in product(*values):
        edited = text
        for name, value in zip(alternatives, combination, strict=True):
            edited = put_value(edited, name.split("."), value)
        yield edited


def put_value(text: str, keys: Sequence[str], value: Any) -> str:
    """Return the text of a YAML mapping with a value at a path of keys in it, or without it."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return _put_below(text, root, keys, value)


def _put_below(text: str, node: Any, keys: Sequence[str], value: Any) -> str:
    key, *inner_keys = keys
    for entry in node.value:
        key_node, member = entry
        if key_node.value != key:
            continue
        if inner_keys and isinstance(member, yaml.MappingNode):
            return _put_below(text, member, inner_keys, value)
        if value is _Removal:
            return text if inner_keys else _remove(text, node, entry)
        start, end = _find_text(text, entry)
        return f"{text[:start]} {dump_flow(_nest(inner_keys, value))}{text[end:]}"
    if value is _Removal:
        return text
    return _insert(text, node, key, _nest(inner_keys, value))


def _nest(keys: Sequence[str], value: Any) -> Any:
    """Return a value within a mapping for each key."""
    for key in reversed(keys):
        value = {key: value}
    return value


def _find_text(text: str, entry: Any) -> tuple[int, int]:
    """Return where the text of an entry's value begins, behind the colon, and where it ends."""
    key, member = entry
    # Behind the key, which may have a colon in it.
    colon = text.index(":", key.end_mark.index) + 1
    # PyYAML gives an alias the node of its anchor, whose marks are elsewhere.
    alias = _ALIAS.match(text, colon)
    if alias:
        return colon, alias.end()
    return colon, max(colon, _find_end(text, member))


def _find_end(text: str, node: Any) -> int:
    """Return where the text of a node ends. Where a block ends, the parser sees the next token."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        end: int = node.end_mark.index
        return len(text[:end].rstrip())
    last = node.value[-1]
    if isinstance(node, yaml.MappingNode):
        return _find_text(text, last)[1]
    return _find_end(text, last)


def _insert(text: str, node: Any, key: str, value: Any) -> str:
    """Return the text with another entry at the end of a mapping."""
    words = f"{key}: {dump_flow(value)}"
    if node.flow_style:
        end = node.end_mark.index - 1
        inside = text[:end].rstrip()
        comma = ", " if node.value and not inside.endswith(",") else ""
        return f"{inside}{comma}{words}{text[end:]}"
    indent = " " * node.value[0][0].start_mark.column
    end = _find_line_end(text, _find_end(text, node))
    return f"{text[:end]}\n{indent}{words}{text[end:]}"


def _remove(text: str, node: Any, entry: Any) -> str:
    """Return the text without an entry of a mapping, which stays, though it may be empty then."""
    start = entry[0].start_mark.index
    end = _find_text(text, entry)[1]
    if len(node.value) == 1 and not node.flow_style:
        # A block mapping without entries would be null.
        return f"{text[:start]}{{}}{text[end:]}"
    if not node.flow_style:
        return (
            text[: text.rfind("\n", 0, start) + 1]
            + text[_find_line_end(text, end) + 1 :]
        )
    after = re.match(r"\s*,\s*", text[end:])
    if after:
        return text[:start] + text[end + after.end() :]
    return re.sub(r",\s*$", "", text[:start]) + text[end:]


def _find_line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end
