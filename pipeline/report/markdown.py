"""A validation as Markdown, for people. Reads the JSON records only, and imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.markdown_contents import contents_sections, latency_section
from pipeline.report.markdown_delegation import delegation_tables
from pipeline.report.markdown_parts import cell as _cell
from pipeline.report.markdown_parts import code as _code
from pipeline.report.markdown_parts import count as _count
from pipeline.report.markdown_parts import section as _section
from pipeline.report.markdown_parts import table as _table

Json = Mapping[str, Any]


def markdown(validation: Json, manifest: Json | None = None) -> str:
    """The report of `Validation.to_json()`; the verdict is its first line.

    Of the manifest's facts, where there are any, `delegation` (method name to what
    `delegation.told_delegation` gives), `left_float` (quantized method to operators of its control
    flow that were not), `sizes` (file name to bytes) and `contents` (contents.py) are shown. The
    same records give the same text.
    """
    manifest = manifest or {}
    parts = [
        _verdict(validation),
        _limits(validation),
        _methods(validation["methods"]),
        _failures(validation),
        _culprits(validation["methods"]),
        _gates(validation.get("gates") or ()),
        _skipped(validation["methods"]),
        *(
            _section(table.title, _table(table.head, table.rows, table.numbers))
            for table in delegation_tables(manifest.get("delegation", {}))
        ),
        _left_float(manifest.get("left_float", {})),
        _sizes(manifest.get("sizes", {})),
        *contents_sections(manifest.get("contents")),
        latency_section(validation["methods"]),
        _bundle(validation.get("bundle")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(validation: Json) -> str:
    methods = validation["methods"]
    failed = sum(not method["ok"] for method in methods)
    if validation["ok"]:
        unrun = sum(bool(method["not_run"]) for method in methods)
        note = f", {unrun} not run" if unrun else ""
        return f"# {validation['package']}: passed, {_count(len(methods), 'method')}{note}"
    failures = _count(len(validation["failures"]), "failure")
    where = f" in {failed} of {_count(len(methods), 'method')}" if failed else ""
    return f"# {validation['package']}: FAILED, {failures}{where}"


# Limits but for the tolerances, as they are read in a sentence.
_LIMITS = {
    "max_mean_abs": "mean absolute error at most {:g}",
    "max_p999_abs": "99.9th percentile of the absolute error at most {:g}",
    "max_relative": "relative error at most {:g}",
    "min_sqnr": "SQNR at least {:g} dB",
    "min_cosine": "cosine at least {:g}",
    "min_agreement": "greatest values at the same place in at least {:.1%} of rows",
}


def _limits(validation: Json) -> str:
    settings = validation["settings"]
    common = _limits_of(settings)
    parts = [*common, f"{_count(settings['inputs'], 'generated input set')}"]
    parts[-1] += f" (seed {settings['seed']})"
    parts += [f"{_count(settings['steps'], 'call')} in sequence where a method has state"]
    lines = ["Limits: " + "; ".join(parts) + "."]
    for method in validation["methods"]:
        own = _limits_of(method["limits"]) if method["limits"] else common
        if own != common:
            lines.append(f"Limits of {_code(method['method'])}: {'; '.join(own)}.")
    return "\n\n".join(lines)


def _limits_of(limits: Json) -> list[str]:
    told = [f"absolute error at most {limits['atol']:g} + {limits['rtol']:g} x |expected|"]
    given = ((words, limits.get(name)) for name, words in _LIMITS.items())
    return told + [words.format(limit) for words, limit in given if limit is not None]


# The columns of figures: their names, titles and formats.
_FIGURES = (
    ("max_abs", "max abs error", "{:.3g}"),
    ("p999_abs", "99.9 % abs error", "{:.3g}"),
    ("mean_abs", "mean abs error", "{:.3g}"),
    ("relative", "relative error", "{:.3g}"),
    ("sqnr_db", "worst SQNR", "{:.1f} dB"),
    ("cosine", "cosine", "{:.6f}"),
    ("agreement", "agreement", "{:.1%}"),
)


def _methods(methods: Sequence[Json]) -> str:
    rows = [
        (
            _code(method["method"]),
            "with state" if method["state"] else method["kind"],
            str(len(method["runs"])),
            *(
                _figure(method[name], style) if method["runs"] else "-"
                for name, _, style in _FIGURES
            ),
            _outcome(method),
        )
        for method in methods
    ]
    head = ("method", "kind", "runs", *(title for _, title, _ in _FIGURES), "verdict")
    return _table(head, rows, numbers=range(2, 3 + len(_FIGURES)))


def _outcome(method: Json) -> str:
    if not method["ok"]:
        return "FAILED"
    return "not run" if method["not_run"] else "passed"


def _failures(validation: Json) -> str:
    known = [failure for method in validation["methods"] for failure in method["failures"]]
    rows = [(_code(f["method"]), f["inputs"] or "-", f["output"] or "-", f["what"]) for f in known]
    rows += [("-", "-", "-", text) for text in validation["failures"][len(known) :]]
    return _section("Failures", _table(("method", "input set", "output", "what failed"), rows))


def _culprits(methods: Sequence[Json]) -> str:
    """Where methods go wrong, the first of each first, and what could not be found out."""
    rows = [
        (
            _code(method["method"]),
            _code(culprit["operator"]),
            _code(culprit["module"]),
            _runs_in(culprit),
            culprit["what"],
            _code(culprit["line"]),
        )
        for method in methods
        for culprit in method.get("culprits") or ()
    ]
    head = ("method", "operator", "module", "runs in", "what is wrong", "source")
    notes = "\n".join(
        f"- {_cell(note)}" for method in methods for note in method.get("culprit_notes") or ()
    )
    told = "\n\n".join(part for part in (_table(head, rows), notes) if part)
    return _section("Where it goes wrong", told)


def _runs_in(culprit: Json) -> str:
    if not culprit["backend"]:
        return "-"
    number = "" if culprit["partition"] is None else f" {culprit['partition']}"
    return f"{culprit['backend']}{number}"


def _gates(gates: Sequence[Json]) -> str:
    """Those that fail first."""
    rows = [
        (
            _code(gate["gate"]),
            _code(gate["method"] or ""),
            "passed" if gate["ok"] else "FAILED",
            gate["sentence"],
            gate.get("place") or "-",
        )
        for gate in sorted(gates, key=lambda gate: gate["ok"])
    ]
    return _section("Gates", _table(("gate", "method", "verdict", "what", "set in"), rows))


def _skipped(methods: Sequence[Json]) -> str:
    rows = [(_code(m["method"]), "all", m["not_run"]) for m in methods if m["not_run"]]
    rows += [
        (
            _code(method["method"]),
            skip["origin"],
            f"the source program itself fails: {skip['reason']}",
        )
        for method in methods
        for skip in method["skipped"]
    ]
    return _section("Not run", _table(("method", "input set", "why"), rows))


def _left_float(figures: Mapping[str, int]) -> str:
    why = "control flow, whose bodies no quantizer looks into"
    rows = [(_code(method), str(number), why) for method, number in sorted(figures.items())]
    head = ("method", "operators in floating point", "where")
    return _section("Not quantized", _table(head, rows, numbers=range(1, 2)))


def _sizes(sizes: Mapping[str, int]) -> str:
    rows = [(_code(n), f"{size:,}", f"{size / (1 << 20):.2f}") for n, size in sorted(sizes.items())]
    return _section("Sizes", _table(("file", "bytes", "MiB"), rows, numbers=range(1, 3)))


def _bundle(bundle: Json | None) -> str:
    """The bundled program, with the tolerances to give the runtime."""
    if not bundle:
        return ""
    rows = [
        (_code(name), str(len(suite["cases"])), f"{suite['rtol']:g}", f"{suite['atol']:g}")
        for name, suite in bundle["methods"].items()
    ]
    left = [
        f"- {_code(name)}{each['origin'] and ', '}{each['origin']}: {each['reason']}"
        for name, suite in bundle["methods"].items()
        for each in suite["left_out"]
    ]
    state = [_code(name) for name, suite in bundle["methods"].items() if suite["state"]]
    parts = [
        f"{_code(bundle['file'])} has {bundle['size']:,} bytes.",
        _table(("method", "cases", "rtol", "atol"), rows, numbers=range(1, 4)),
        f"With state, to be loaded anew for each case: {', '.join(state)}." if state else "",
        "\n".join(["Left out:", "", *left]) if left else "",
    ]
    return _section("For the device", "\n\n".join(part for part in parts if part))


def _figure(value: float | str | None, style: str) -> str:
    """A figure of the record, in which infinities are strings."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return "exact" if "dB" in style and value == "inf" else value
    return style.format(value)
