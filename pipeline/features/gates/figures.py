"""The figures of a build for comparisons with later builds: sizes, delegation, memory, numerics.

They are JSON, with the fields that `baseline_fields.py` declares, and are read only from JSON
records: the manifest, contents.json and the report of a validation. Times are left out, and
numerics are rounded, so that the same bytes have the same figures on two machines. Latencies can't,
so figures name the processor that they belong to.

A build is JSON as well: its `figures` and its `manifest`, which is None if only a baseline, with
only the largest tensors, is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.features.gates.outputs import output_shapes
from pipeline.report.records import MOST_SQNR, fits_name, read_fitting
from pipeline.store.digest import hash_json
from pipeline.store.files import CONTENTS, MANIFEST, REPORT, read_record

Json = Mapping[str, Any]


def read_build(manifest: Path) -> Json | None:
    """Read the build of a manifest and the records next to it; None if it can't be read."""
    record = read_record(manifest)  # its file may have another name
    if record is None or not fits_name(MANIFEST, record):
        return None
    records = (read_fitting(manifest.with_name(name)) for name in (CONTENTS, REPORT))
    return make_build(record, *records)


def make_build(manifest: Json, contents: Json | None, report: Json | None) -> Json:
    """Make a build from its records; the report only counts if it matches the manifest's files."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    validation = None
    if report is not None and report.get("files") == files:
        validation = report
    return {
        "figures": make_figures(manifest, contents, validation),
        "manifest": manifest,
    }


def make_figures(
    manifest: Json, contents: Json | None = None, validation: Json | None = None
) -> dict[str, Any]:
    """Read the figures of a build from its records; a figure in none of them is None or empty."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    inside = (contents or {}).get("methods", {})
    proved = {
        method_record["method"]: method_record
        for method_record in (validation or {}).get("methods", ())
    }
    is_timed = any(method.get("latency") for method in proved.values())
    methods = {}
    for name, facts in sorted(manifest["methods"].items()):
        methods[name] = _method(facts, inside.get(name, {}), proved.get(name, {}))
    return {
        "digest": hash_json(files),
        "files": {},  # set in a baseline if growth is measured on devices
        "size": sum(file["size"] for file in manifest["files"].values()),
        "segments": _segments(manifest, contents),
        "processor": (validation or {}).get("processor") if is_timed else None,
        "tensors": dict(_tensors((contents or {}).get("tensors", ()))),
        "methods": methods,
    }


def _segments(manifest: Json, contents: Json | None) -> dict[str, int]:
    """Return the bytes of segments by kind.

    Without contents.json, count the blobs of the objects, each once, since they are linked once,
    and call the rest of the files "program".
    """
    sizes: Counter[str] = Counter()
    if contents:
        for segment in contents["segments"]:
            sizes[segment["kind"]] += segment["size"]
    else:
        blobs: dict[tuple[str, str], int] = {}
        for unit in manifest.get("objects", {}).values():
            for kind, blob in _iter_blobs(unit["parts"]):
                blobs[kind, blob["digest"]] = blob["size"]
        for (kind, _), size in blobs.items():
            sizes[kind] += size
        whole = sum(file["size"] for file in manifest["files"].values())
        # The part that no object accounts for: the flatbuffer, its alignment and padding.
        sizes["program"] += max(0, whole - sum(blobs.values()))
    return dict(sorted((+sizes).items()))  # those above zero


def _iter_blobs(parts: Json) -> Iterator[tuple[str, Json]]:
    """Yield the blobs of an object, each with the kind of the segment that it becomes."""
    for blob in (*parts["constants"], *parts["external_constants"]):
        yield "constants", blob
    for blob in parts["delegates"]:
        yield "delegate", blob
    for entries in (parts["named"], *parts["named_external"].values()):
        for entry in entries:
            yield "named_data", entry["blob"]


def _tensors(tensors: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    """Yield tensors by name; a repeated name, or a missing one, gets a number."""
    occurrences: Counter[str] = Counter()
    for tensor in tensors:
        name = tensor["name"] or "(unnamed)"
        occurrences[name] += 1
        key = name if occurrences[name] == 1 else f"{name} #{occurrences[name]}"
        yield key, {field: tensor[field] for field in ("dtype", "shape", "size")}


def _method(facts: Json, inside: Json, proved: Json) -> dict[str, Any]:
    delegation = facts["delegation"]
    kernels = delegation.get("kernels", {})
    kernel_calls: Counter[str] = Counter()
    for counts in kernels.values():
        for name, count in counts.items():
            kernel_calls[name] = count
    arenas = inside.get("planned_memory")
    sqnr = None
    if proved.get("kind") == "program":
        sqnr = _sqnr(proved.get("runs", ()))
    # If all outputs are as close as float32 allows, the error depends on the processor.
    measured = any(
        output_sqnr is not None and output_sqnr < MOST_SQNR
        for output_sqnr in sqnr or ()
    )
    error = float(proved.get("max_abs", math.inf)) if measured else math.inf
    planned = None
    if arenas is not None:
        planned = sum(arena["size"] for arena in arenas)
    return {
        "nodes": delegation["nodes"],
        "delegated_nodes": delegation["delegated_nodes"] + kernel_calls.total(),
        "operators": delegation["operators"],
        "delegated_operators": delegation["delegated_operators"] + len(kernel_calls),
        "partitions": dict(sorted(delegation["partitions"].items())),
        "left": dict(sorted(delegation["undelegated"].items())),
        "planned_memory": planned,
        "constants": inside.get("constants"),
        "delegated": inside.get("delegated"),
        "outputs": output_shapes(facts.get("signature", {})),
        "sqnr_db": sqnr,
        "max_abs": None if math.isinf(error) else float(f"{error:.2g}"),
        "latency": _latency(proved.get("latency")),
    }


def _latency(measured: Json | None) -> Json | None:
    if not measured:
        return None
    steady = {name: measured["steady_ms"][name] for name in ("median", "low", "high")}
    return {**steady, "ratio": measured["ratio"]}


def _sqnr(runs: Sequence[Json]) -> list[float | None] | None:
    """Return the worst SQNR of each output over the examples.

    Without examples, it is the worst over random inputs.

    Noise is outside the ranges that a quantizer observed: its figures would hide a drop on
    examples.
    """
    usual = [run for run in runs if not run.get("case")] or runs
    usual = [run for run in usual if not run.get("generated")] or usual
    figures_by_run = []
    for run in usual:
        figures_by_run.append([output["sqnr_db"] for output in run["outputs"]])
    worst: list[float | None] = []
    for place_figures in zip_longest(*figures_by_run):
        figures = [
            round(min(float(figure), MOST_SQNR), 1)  # infinities are strings
            for figure in place_figures
            if figure is not None
        ]
        worst.append(min(figures, default=None))
    return worst or None


def share_of(method: Json, noun: str = "nodes") -> float:
    """Return the share of a method's nodes, or its operators, that run on delegates."""
    whole: int = method[noun]
    if whole:
        return method[f"delegated_{noun}"] / whole  # type: ignore[no-any-return]
    return 1.0
