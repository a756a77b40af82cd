"""The section on quantization: verdicts, calibration, shares, and tensors left in float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.features.pages.codes import add_code
from pipeline.report.cells import code, figure, name, text, verdict_cell
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, sort_key
from pipeline.report.records import in_order
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

_BRIEF = 10  # Markdown rows of tables sorted by size
_SOURCES = {
    "files": "of files",
    "calibration_inputs": "of calibration_inputs",
    "examples": "of example_inputs",
    "generated": "generated at random",
}
_KINDS = {
    "one value": "saw one value",
    "not finite": "saw infinities or NaN",
    "cut off": "cuts off a large part of what it saw",
}


def section(report: Json) -> ReportSection:
    methods = in_order(report, report.get("quantization"))
    return ReportSection(
        "quantization",
        "Quantization",
        DataTable(
            "quantization-verdicts", "Verdicts on quantization", list(_verdicts(report))
        ),
        DataTable(
            "quantized",
            "Quantization by method",
            [_row(*entry) for entry in methods.items()],
        ),
        DataTable("quantization-warnings", "Warnings", list(_warnings(methods))),
        DataTable(
            "left-unquantized",
            "Largest tensors left in floating point",
            list(_left(methods)),
            _BRIEF,
        ),
        DataTable(
            "observers",
            "Unreliable observed ranges",
            list(_remarks(methods)),
            _BRIEF,
        ),
    )


def _verdicts(report: Json) -> Iterator[Row]:
    """Yield the verdict on each quantization, with its SQNR on examples and generated inputs."""
    for method in report["methods"]:
        quantization = method.get("quantization")
        if quantization:
            yield {
                "method": name(method["method"]),
                "verdict": verdict_cell(quantization["verdict"]),
                "SQNR on examples": _least_sqnr(quantization["examples"]),
                "on generated inputs": _least_sqnr(quantization["generated"]),
                "why": Cell(quantization["reason"], kind="wide"),
            }


def _least_sqnr(pools: Sequence[Json]) -> Cell:
    """Return the lowest SQNR among the outputs, each taken over all calls."""
    ratios = [pool["sqnr_db"] for pool in pools if pool["sqnr_db"] is not None]
    return figure(min(ratios, key=sort_key) if ratios else None, decibel)


def _row(method: str, facts: Json) -> Row:
    weights = facts["weights"]
    compute = facts["compute"]
    return {
        "method": name(method),
        "quantizer": code(facts["quantizer"]),
        "activations": text(" and ".join(facts["activations"]) or "in floating point"),
        "calibrated on": _calibration(facts["calibration"]),
        "weights quantized": _share(
            weights["quantized"],
            weights["bytes"],
            f"of {human_size(weights['bytes'])} as floats",
        ),
        "compute quantized": _share(
            compute["quantized"],
            compute["multiplications"],
            f"of {compute['multiplications']:,} multiplications",
        ),
    }


def _calibration(calibration: Json) -> Cell:
    if calibration["source"] == "none":
        return Cell("nothing; not needed", kind="soft")
    kind = ""
    if calibration["source"] == "generated":
        kind = "bad"
    source = _SOURCES.get(calibration["source"], "")
    return Cell(plural(calibration["inputs"], "input"), note=source, kind=kind)


def _share(part: int, whole: int, note: str) -> Cell:
    if not whole:
        return figure(None)
    return figure(
        part / whole,
        percent,
        note=note,
        **({} if part else {"kind": "bad"}),
    )


def _warnings(methods: Mapping[str, Any]) -> Iterator[Row]:
    for method, facts in methods.items():
        for warning in facts["warnings"]:
            message = add_code(warning, "warning")
            yield {"method": name(method), "what": Cell(message, kind="wide")}


def _left(methods: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the tensors left in floating point, the largest first."""
    tensors = [
        (m, tensor) for m, facts in methods.items() for tensor in facts["left_float"]
    ]
    for method, tensor in sorted(tensors, key=lambda entry: -entry[1]["bytes"]):
        yield {
            "tensor": code(tensor["name"]),
            "method": name(method),
            "bytes": figure(tensor["bytes"]),
            "why": Cell(tensor["why"], kind="wide"),
        }


def _remarks(methods: Mapping[str, Any]) -> Iterator[Row]:
    for method, facts in methods.items():
        for remark in (facts["observers"] or {}).get("remarks", ()):
            yield {
                "observer of": code(remark["value"]),
                "method": name(method),
                "what": text(_KINDS.get(remark["kind"], remark["kind"])),
                "seen": _interval(remark["seen"]),
                "range": _interval(remark["range"]),
                "infinite or NaN": figure(remark["nonfinite"]),
            }


def _interval(ends: Any) -> str:
    if ends is None or None in ends:
        return NOTHING
    least, greatest = ends
    if least == greatest:
        return error(least)
    return f"{error(least)} to {error(greatest)}"
