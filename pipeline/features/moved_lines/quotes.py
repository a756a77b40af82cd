"""The lines of a model's source that the record of a measured package quotes.

An edit can move lines and leave every program unchanged. The measurements then stay valid, and only
the lines are quoted again: from the traces in the archives, without torch. Nodes are identified by
their numbers in `list_lines`, which are the same in every archive of one program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.program.archive_reader import open_archive
from pipeline.program.source_lines import list_lines
from pipeline.program.sources import MethodSource
from pipeline.store.errors import SourceError
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_PLACE = re.compile(r"\.py:\d")


def find_quotes(record: Json, inputs: ValidateInputs, workspace: Workspace) -> Json:
    """Return the data from which the lines of a record can be quoted again.

    `lines` maps the text of each quoted line to the numbers, by method, of the nodes that come from
    it. `complete` says whether these are all the lines that the record quotes.
    """
    text = json.dumps(record)
    lines: dict[str, dict[str, list[int]]] = {}
    if _PLACE.search(text):
        for method, source in inputs.sources.items():
            for number, line in enumerate(_read_lines(source, workspace)):
                if line and _escape(line) in text:
                    lines.setdefault(line, {}).setdefault(method, []).append(number)
    rest = _match_any(lines).sub("", text)
    return {"lines": lines, "complete": not _PLACE.search(rest)}


def quote_anew(
    record: Json, quotes: Json, inputs: ValidateInputs, workspace: Workspace
) -> Json | None:
    """Return a record with the lines as they are now in its sources.

    None if they can't be determined, so that the package has to be measured again. Raises
    SourceError if an archive changes meanwhile.
    """
    if not quotes.get("complete"):
        return None
    lines: dict[str, list[str]] = {}
    for nodes in quotes["lines"].values():
        for method in nodes.keys() - lines.keys():
            lines[method] = _read_lines(inputs.sources[method], workspace)
    escaped: dict[str, str] = {}
    for line, nodes in quotes["lines"].items():
        current = _find_current(nodes, lines)
        if current is None:
            return None
        escaped[_escape(line)] = _escape(current)
    pattern = _match_any(quotes["lines"])
    text = pattern.sub(lambda match: escaped[match[0]], json.dumps(record))
    quoted: Json = json.loads(text)
    return quoted


def _find_current(
    nodes: Mapping[str, Sequence[int]], lines: Mapping[str, Sequence[str]]
) -> str | None:
    """Return the line that all of these nodes come from now, or None.

    None if the line has become several, since it isn't known which of them was meant, or if the
    nodes have no line.
    """
    current = set()
    for method, numbers in nodes.items():
        current |= {lines[method][number] for number in numbers}
    if len(current) == 1:
        return current.pop() or None
    return None


def _read_lines(source: MethodSource, workspace: Workspace) -> list[str]:
    """Return the line of each node of a method, or "".

    Raises SourceError if the archive changed, and MissingBlobError if the store has lost it.
    """
    archive = source.archive
    if source.exported and source.content is not None:
        archive = workspace.store.verified_path(source.content, once=True)
    with open_archive(archive) as reader:
        program = reader.program(source.entry)
    if not source.exported and workspace.file_digests.find(archive) != source.content:
        raise SourceError(f"{archive.name}: changed while the build ran; run again")
    return list_lines(program["graph_module"]["graph"], workspace.root)


def _match_any(lines: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of these lines in JSON, the longest line first."""
    longest_first = sorted(map(_escape, lines), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _escape(line: str) -> str:
    return json.dumps(line)[1:-1]
