"""ETRecords: the lines and modules of a package's instructions, for ExecuTorch's `Inspector`.

ExecuTorch writes an ETRecord while it lowers all methods in one call. Here each compile unit keeps
its entries, and linking, which renumbers neither instructions nor debug handles, joins them. Data
that differs between runs, such as ids of graphs in memory and paths of a machine, is replaced.
Source: executorch/devtools/etrecord/_etrecord.py, executorch/exir/serde/serialize.py.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from executorch.exir import ExecutorchProgramManager
from executorch.exir.serde.export_serialize import SerializeError
from torch.export import ExportedProgram

from pipeline.compile.objects import Blob, put_blob
from pipeline.program.graphs import iter_nodes
from pipeline.store.errors import PipelineError
from pipeline.store.files import ETRECORD
from pipeline.store.reasons import iter_causes, reason
from pipeline.store.store import Store

if TYPE_CHECKING:
    from executorch.devtools.etrecord import ETRecord

FILE = ETRECORD
_IDENTIFIER = "ETRECORD_V0"
_EXPORTED, _EDGE = "exported_program", "edge_dialect_exported_program"
# Each is keyed by method. In the order in which ExecuTorch writes them.
_MAPS = ("debug_handle_map", "delegate_map", "instruction_id_to_num_outs_map")
_GRAPH_ID = "export_graph_id"
# The parts of a program in addition to its graph.
_PARTS = ("_state_dict", "_constants", "_example_inputs")
# Replace the id of the exported program's graph, for which `Inspector` looks, and the ids of graphs
# on the way to the edge program. Ids are addresses, which several graphs may use in turn.
_OWN_GRAPH, _OTHER_GRAPH = 1, 0
_NAME = re.compile(rf"(.*?)(?:/(.*?))?({'|'.join(_PARTS)})?")  # kind, method, part
_FILE = re.compile(r'File "([^"\n]+)"')
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can store

Lines = Mapping[str, str]


def record_etrecord(
    manager: ExecutorchProgramManager, store: Store, lines: Mapping[str, Lines]
) -> dict[str, Any]:
    """Commit the entries of a unit's ETRecord and return their blobs by name, as JSON.

    Args:
        manager: the emitted unit, which was lowered with `generate_etrecord`.
        lines: for quantized methods, the result of `map_current_lines`, by method.

    Raises:
        PipelineError: ExecuTorch can't write, or would not read, the record.
    """
    etrecord = manager.get_etrecord()
    programs = etrecord.edge_dialect_program
    if isinstance(programs, ExportedProgram):  # which would be named `forward`
        (method,) = manager.methods
        etrecord.edge_dialect_program = {method: programs}
    for method in manager.methods:
        if method.endswith(_PARTS):
            raise PipelineError(
                f"{method}: ExecuTorch reads no ETRecord of a method whose name ends in "
                f"{', '.join(_PARTS)}; rename it, or leave `emit.etrecord` out"
            )
    file = io.BytesIO()
    try:
        etrecord.save(file)
    except SerializeError as error:  # such as control flow with its own constants
        *_, first = iter_causes(error)
        raise PipelineError(
            f"{', '.join(sorted(manager.methods))}: ExecuTorch can't write the program into an "
            f"ETRecord ({reason(first)}); leave `emit.etrecord` out"
        ) from error
    blobs = {}
    with zipfile.ZipFile(file) as entries:
        names = entries.namelist()
        for name in names:
            content = entries.read(name)
            if f"{name}{_PARTS[0]}" in names:
                method = name.partition("/")[2] or "forward"
                content = _neutralize(
                    content, etrecord.export_graph_id, lines.get(method)
                )
            elif name == _GRAPH_ID:
                content = json.dumps(_OWN_GRAPH).encode()
            blob = put_blob(store, content)
            blobs[name] = {"digest": blob.digest, "size": blob.size}
    return blobs


def map_current_lines(
    quantized: ExportedProgram, source: ExportedProgram
) -> dict[str, str]:
    """Map each stack trace of a quantized program to the current one of the same node.

    The program may come from an earlier export of its source.
    """
    now = {
        (node.name, str(node.target)): node.meta.get("stack_trace")
        for node in iter_nodes(source)
    }
    traces: dict[str, str] = {}
    for node in iter_nodes(quantized):
        old = node.meta.get("stack_trace")
        new = now.get((node.name, str(node.target)))
        if old and new:
            traces.setdefault(old, new)
    return traces


def _neutralize(serialized: bytes, own_graph: int | None, lines: Lines | None) -> bytes:
    """Return a serialized program without ids of this process and paths of this machine."""

    def renumber(ancestor: dict[str, Any]) -> dict[str, Any]:
        is_own = ancestor["graph_id"] == own_graph
        return {**ancestor, "graph_id": _OWN_GRAPH if is_own else _OTHER_GRAPH}

    def neutralize_node(value: dict[str, Any]) -> dict[str, Any]:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            if trace := metadata.pop("stack_trace", None):
                trace = trace if lines is None else lines.get(trace)
                if trace:
                    metadata["stack_trace"] = _FILE.sub(_shorten, trace)
            if origin := metadata.get("from_node"):
                metadata["from_node"] = json.dumps(
                    json.loads(origin, object_hook=renumber)
                )
        return value

    return json.dumps(json.loads(serialized, object_hook=neutralize_node)).encode()


def _shorten(path: re.Match[str]) -> str:
    """Return a file's name in its package, the last two parts of its path, or `<generated>`."""
    if path[1].startswith("<"):
        return f'File "{path[1].partition(">")[0]}>"'
    parts = PurePath(path[1]).parts
    for installed in ("site-packages", "dist-packages"):
        if installed in parts:
            return f'File "{"/".join(parts[parts.index(installed) + 1 :])}"'
    return f'File "{"/".join(parts[-2:])}"'


def join_etrecords(
    records: Iterable[Mapping[str, Any]], order: Sequence[str], store: Store
) -> Blob:
    """Join the entries of all units, in the order of the methods, into one file and commit it.

    Raises MissingBlobError.
    """
    entries: dict[str, Mapping[str, Any]] = {}
    maps: dict[str, dict[str, Any]] = {}
    for record in records:
        for name, blob in record.items():
            if name in _MAPS:
                maps.setdefault(name, {}).update(json.loads(store.read(blob["digest"])))
            else:
                entries[name] = blob
    own_graph = entries.pop(_GRAPH_ID, None)
    # In the order of names, in which the emitter processes the methods.
    values: dict[str, Any] = {n: dict(sorted(maps.get(n, {}).items())) for n in _MAPS}
    if own_graph is not None:
        values[_GRAPH_ID] = _OWN_GRAPH
    with store.writer() as blob:
        # `zipfile` flushes, but the store does that when the blob is complete.
        file: Any = SimpleNamespace(write=blob.write, flush=lambda: None)
        with zipfile.ZipFile(file, "w") as archive:
            for name in sorted(entries, key=lambda name: _rank(name, order)):
                info = zipfile.ZipInfo(name, _TIME)
                info.file_size = entries[name]["size"]
                with archive.open(info, "w") as entry:
                    for chunk in store.stream(entries[name]["digest"]):
                        entry.write(chunk)
            for name, value in values.items():
                archive.writestr(zipfile.ZipInfo(name, _TIME), json.dumps(value))
    return Blob(blob.digest, blob.size)


def _rank(name: str, order: Sequence[str]) -> tuple[Any, ...]:
    """Return a sort key that puts entries in the order of ExecuTorch's own files."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    kind, method, part = match.groups("")
    kinds = (_IDENTIFIER, _EXPORTED, _EDGE)
    return (
        kinds.index(kind) if kind in kinds else len(kinds),
        kind,
        order.index(method) if method in order else -1,
        ("", *_PARTS).index(part),
    )


def load_etrecord(path: str | Path, method: str) -> ETRecord:
    """Load the ETRecord of one method of a package, for `Inspector(etrecord=...)`.

    `Inspector` looks only for the method `forward`, so profile one method per run. Raises
    PipelineError if the package has no such method.
    """
    from executorch.devtools.etrecord import ETRecord, parse_etrecord

    whole = parse_etrecord(str(path))
    handles = whole._debug_handle_map or {}
    if method not in handles:
        method_names = ", ".join(sorted(handles)) or "none"
        raise PipelineError(f"{path}: has no method '{method}'; it has {method_names}")
    edge = whole.edge_dialect_program
    graphs = whole.graph_map or {}
    return ETRecord(
        exported_program=whole.exported_program if method == "forward" else None,
        export_graph_id=whole.export_graph_id,
        edge_dialect_program=edge[method] if isinstance(edge, dict) else edge,
        graph_map={n: graph for n, graph in graphs.items() if n.endswith(f"/{method}")},
        _debug_handle_map={"forward": handles[method]},
        _delegate_map={"forward": (whole._delegate_map or {}).get(method, {})},
        _instruction_id_to_num_outs_map={
            "forward": (whole._instruction_id_to_num_outs_map or {}).get(method, {})
        },
    )
