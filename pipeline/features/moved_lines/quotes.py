"""The lines of a model's source that the record of a measured package quotes.

An edit can move lines and leave every program as it was. What was measured then holds, and only its
lines are quoted anew: from the traces in the archives, without torch. Nodes go by their numbers in
`list_lines`, which are the same in every archive of one program.
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
    """Return what it takes to quote the lines of a record anew.

    `lines` has, by the text of each line, the nodes that it is the line of, by method. `complete`
    says whether these are all the lines that the record quotes.
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
    """Return a record with the lines that its sources have now; None where they can't be known, and
    the package has to be measured again. Raises SourceError."""
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
    """Return the line that all of these nodes have now; None where a line became several, and it
    is not known which of them was meant."""
    current = set()
    for method, numbers in nodes.items():
        current |= {lines[method][number] for number in numbers}
    if len(current) == 1:
        return current.pop() or None
    return None


def _read_lines(source: MethodSource, workspace: Workspace) -> list[str]:
    """Return the lines of a method's nodes. Raises SourceError for an archive that changed, and
    MissingBlobError for one that the store lost."""
    archive = source.archive
    if source.exported and source.content is not None:
        archive = workspace.store.verified_path(source.content, once=True)
    with open_archive(archive) as reader:
        program = reader.program(source.entry)
    if not source.exported and workspace.file_digests.find(archive) != source.content:
        raise SourceError(f"{archive.name}: changed while the build ran; run again")
    return list_lines(program["graph_module"]["graph"], workspace.root)


def _match_any(lines: Iterable[str]) -> re.Pattern[str]:
    """Return what matches any of these lines in JSON, the longest where several would do."""
    longest_first = sorted(map(_escape, lines), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _escape(line: str) -> str:
    return json.dumps(line)[1:-1]
