"""Errors of outputs, compared with those of the source: limits, figures, and a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.report.cells import figure, name, source, text, verdict_cell
from pipeline.report.elements import Cell, Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, ratio, short
from pipeline.report.records import UNASKED
from pipeline.report.sections.movement import movement_table
from pipeline.report.sections.reference import describe_comparison, describe_limits
from pipeline.store.errors import listed, plural

_LIMITS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max_mean_abs": ("mean absolute error at most {}", short),
    "max_p999_abs": ("99.9th percentile of the absolute error at most {}", short),
    "max_relative": ("relative error at most {}", short),
    "min_sqnr": ("SQNR at least {} dB", short),
    "min_cosine": ("cosine at least {}", short),
    "min_agreement": (
        "greatest values at the same place in at least {} of rows",
        percent,
    ),
}
# Titles of columns, the figures in them, and how these are formatted.
_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max error": ("max_abs", error),
    "99.9 %": ("p999_abs", error),
    "mean": ("mean_abs", error),
    "relative": ("relative", error),
    "SQNR": ("sqnr_db", decibel),
    "cosine": ("cosine", ratio),
    "agreement": ("agreement", percent),
}
_EXAMPLES, _GENERATED = "examples", "generated inputs"
_MOST_NAMED = 4  # methods in a sentence
# Figures that only the table of every call has room for.
_OF_CALLS = (
    "99.9 %",
    "relative",
)
_FEW_ROWS = 100  # from which on a share says more than it hides
_MOST_SETS = 16  # of one output in the chart of errors; the worst


class Output(NamedTuple):
    """An output of a call. `suffix` names it where the call has several, `where` is its input set,
    and `ok` whether no failure of the method is about it."""

    method: Json
    run: Json
    errors: Json
    suffix: str
    where: str
    ok: bool


def _outputs(report: Json) -> Iterator[Output]:
    """Yield the outputs of every call."""
    for method in report["methods"]:
        for run in method["runs"]:
            yield from _outputs_of_run(method, run)


def _outputs_of_run(method: Json, run: Json) -> Iterator[Output]:
    where = run["origin"]
    if run.get("step"):
        where += f" (call {run['step']} from {run['sequence']})"
    count = len(run["outputs"])
    names = method.get("outputs") or [f"output[{number}]" for number in range(count)]
    for output, errors in zip(names, run["outputs"], strict=False):
        suffix = ""
        if count > 1:
            suffix = f", {output}"
        failed = _has_failed(method, (where, run["origin"]), output)
        yield Output(method, run, errors, suffix, where, not failed)


def _has_failed(method: Json, input_sets: Sequence[str], output: str) -> bool:
    """Tell whether a failure of a method is about an output on one of these input sets."""
    for failure in method["failures"]:
        if failure["inputs"] in input_sets and failure["output"] in ("", output):
            return True
    return False


def section(report: Json) -> ReportSection:
    methods = report["methods"]
    places = report.get("places", {})
    rows: list[Row] = []
    if any(method["runs"] or not method["not_run"] for method in methods):
        for method in methods:
            rows += _method_rows(method, places)
    return ReportSection(
        "numerics",
        "Numerics",
        *_limits(report),
        DataTable("methods", "Worst figures of each method", rows),
        _errors(report),
        movement_table(methods),
        DataTable("skipped", "Not run", list(_skipped(methods))),
    )


def calls_section(report: Json) -> ReportSection:
    """Return the section of every call's outputs, those that failed first."""
    rows: list[Row] = []
    for output in sorted(_outputs(report), key=lambda output: output.ok):
        row: Row = {
            "method": name(output.method["method"]),
            "input set": output.where + output.suffix,
            "verdict": _output_verdict(output),
        }
        rows.append({**row, **_figures(output.errors)})
    table = DataTable("calls", "Outputs of every call", rows, brief=0)
    return ReportSection("calls", "Every call", table)


def _limits(report: Json) -> Iterator[str]:
    """Yield a sentence on how the package was run, and what limits follow where none are set."""
    settings = report["settings"]
    methods = report["methods"]
    ran = any(method["runs"] for method in methods if method["kind"] == "program")
    if "atol" not in settings or not ran:
        return
    inputs = (
        f"{plural(settings['inputs'], 'generated input set')} (seed {settings['seed']})"
    )
    steps = f"{plural(settings['steps'], 'call')} in sequence where a method has state"
    yield f"Run on the examples, and on {inputs}; {steps}."
    reasons: dict[str, list[str]] = {}
    for method in methods:
        if not method["runs"]:
            continue
        for comparison in (method, method.get("quantized") or {}):
            reason = comparison.get("limits_reason")
            if reason:
                reasons.setdefault(reason, []).append(method["method"])
    for reason, names in reasons.items():
        yield f"Limits of {listed(dict.fromkeys(names), _MOST_NAMED)}: {reason}."


def _limit_words(limits: Json) -> Iterator[str]:
    if limits.get("atol") is not None:
        atol = short(limits["atol"])
        rtol = short(limits["rtol"] or 0)
        yield f"absolute error at most {atol} + {rtol} × |expected|"
    for key, (words, style) in _LIMITS.items():
        if limits.get(key) is not None:
            yield words.format(style(limits[key]))


def _output_verdict(output: Output) -> Cell:
    mismatch = output.errors.get("mismatch")
    if mismatch:
        return Cell(mismatch, kind="bad")
    if not output.ok:
        return verdict_cell("failed")
    judged = output.errors.get("judged", True)
    return verdict_cell("passed" if judged else "not judged")


def _method_rows(method: Json, places: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each comparison of a method: with what it was lowered from, and, where it was
    quantized on the way, with the float program; of what it was exported to with its reference; on
    examples and on generated inputs apart."""
    if method["state"]:
        note = "with state"
    else:
        note = method["kind"]
    href = source(places.get(f"methods.{method['method']}")).href
    head = {"method": name(method["method"], note, href)}
    for comparison in _compare_method(method, places):
        yield {**head, **comparison}


def _compare_method(method: Json, places: Mapping[str, str]) -> Iterator[Row]:
    quantization = method.get("quantization")
    if quantization is None:
        yield _source_row(method)
    else:
        yield _quantized_row(method)
        yield _quantization_row(method, quantization)
    if method["kind"] == "program":
        yield _reference_row(method.get("reference"), places)
    generated = method.get("on_generated")
    if generated:
        program = "float program"
        if quantization is None:
            program = "source"
        calls = _count_calls(method, _GENERATED)
        yield _row({**generated, "limits": {}}, program, calls, "")


def _source_row(method: Json) -> Row:
    """Return the cells of a package against the program that it was lowered from."""
    if method.get("examples"):
        inputs = _EXAMPLES
    else:
        inputs = _GENERATED
    row = _row(
        method,
        "source",
        _count_calls(method, inputs),
        method["verdict"],
    )
    return {**row, "agreement": _agreement(method)}


def _quantized_row(method: Json) -> Row:
    """Return the cells of a package against the quantized program that it was lowered from."""
    comparison = method.get("quantized")
    if not comparison:
        return _row({"limits": {}}, "quantized program", "", method["verdict"])
    calls = f"{plural(len(method['runs']), 'call')} on all inputs"
    return _row(comparison, "quantized program", calls, method["verdict"])


def _count_calls(method: Json, inputs: str) -> str:
    """Return what inputs a method was called on, with the number of calls."""
    generated = inputs == _GENERATED
    count = sum(bool(run.get("generated")) == generated for run in method["runs"])
    if count:
        return f"{plural(count, 'call')} on {inputs}"
    return ""


def _row(comparison: Json, program: str, calls: str, verdict: str) -> Row:
    """Return the cells of a comparison with a program, with its figures and limits."""
    row: dict[str, Cell | str] = {
        "against": Cell(program, note=calls),
        "verdict": verdict_cell(verdict) if verdict else text(""),
    }
    for title, cell in _figures(comparison if calls else {}).items():
        if title not in _OF_CALLS:
            row[title] = cell
    limits = "; ".join(_limit_words(comparison["limits"]))
    row["held to"] = Cell(limits or NOTHING, kind="wide")
    return row


def _quantization_row(method: Json, quantization: Json) -> Row:
    """Return the cells of the quantized program against the float one, on examples if there are
    any."""
    examples = quantization["examples"]
    if examples:
        inputs = _EXAMPLES
    else:
        inputs = _GENERATED
    calls = f"no call, {inputs} in eager mode"
    if method["runs"]:
        calls = _count_calls(method, inputs)
    if method["runs"] and examples:
        figures = method
    else:
        figures = {}
    comparison = {**figures, "limits": quantization["limits"]}
    row = _row(comparison, "float program", calls, quantization["verdict"])
    pools = [pool for pool in examples if pool["rows"]]
    if pools:
        worst = min(
            pools,
            key=lambda pool: pool["agreeing"] / pool["rows"],
        )
        row = {**row, "agreement": _count(worst["agreeing"], worst["rows"])}
    return row


def _reference_row(reference: Json | None, places: Mapping[str, str]) -> Row:
    """Return the cells of what was exported against its reference, or that there is none."""
    about = describe_comparison(reference)
    if reference is None:
        return _row({"limits": {}}, "no reference", about, "")
    comparison = {"max_abs": reference["max_abs"], "limits": {}}
    row = _row(comparison, "reference", about, reference["verdict"])
    limits = describe_limits(reference, places)
    if limits:
        row = {**row, "held to": Cell(limits, kind="wide")}
    return row


def _figures(record: Json) -> Row:
    cells = {}
    for title, (key, style) in _FIGURES.items():
        cells[title] = figure(record.get(key), style)
    if record.get("rows"):
        cells["agreement"] = _count(record["agreeing"], record["rows"])
    return cells


def _agreement(method: Json) -> Cell:
    """Return how many rows of the output that is worst by it agree, over all examples, or without
    any over all calls; of a record without their numbers, the worst share."""
    runs = [run for run in method["runs"] if not run.get("generated")] or method["runs"]
    agreeing: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for run in runs:
        for place, errors in enumerate(run["outputs"]):
            agreeing[place] += errors.get("agreeing", 0)
            rows[place] += errors.get("rows", 0)
    places = [place for place, count in rows.items() if count]
    if not places:
        return figure(method.get("agreement") if runs else None, percent)
    worst = min(
        places,
        key=lambda place: agreeing[place] / rows[place],
    )
    return _count(agreeing[worst], rows[worst])


def _count(agreeing: int, rows: int) -> Cell:
    share = agreeing / rows
    note = ""
    if rows >= _FEW_ROWS:
        note = percent(share)
    return figure(
        share,
        lambda _: f"{agreeing:,} of {rows:,}",
        note=note,
    )


def _skipped(methods: Sequence[Json]) -> Iterator[Row]:
    """Yield what was not run: methods, then input sets, what was left out, and references."""
    for method in methods:
        if method["not_run"]:
            yield _skip_row(method, "all", method["not_run"])
    for method in methods:
        for skip in method["skipped"]:
            yield _skip_row(method, skip["origin"], skip["reason"])
    for method in methods:
        for inputs in method.get("left_out", ()):
            if inputs == UNASKED:
                yield _skip_row(method, "all", UNASKED)
            else:
                yield _skip_row(method, inputs, "left out: validate.budget was spent")
    for method in methods:
        for skip in method.get("reference", {}).get("skipped", ()):
            yield _skip_row(
                method,
                f"{skip['origin']}, against the reference",
                skip["reason"],
            )


def _skip_row(method: Json, inputs: str, reason: str) -> Row:
    return {
        "method": name(method["method"]),
        "input set": inputs,
        "why": Cell(reason, kind="wide"),
    }


def _errors(report: Json) -> Chart | None:
    """Draw a dot for each output and input set: its error by its limit.

    Of several calls on one set, in a method with state, the worst is drawn. None where every
    output is exact, or none has a limit.
    """
    worst: dict[tuple[str, str], tuple[float, Output]] = {}
    lacking = 0
    for output in _outputs(report):
        ratio = _of_limit(output, report)
        if not isinstance(ratio, int | float):
            lacking += 1
            continue
        place = output.method["method"] + output.suffix, output.run["origin"]
        if place not in worst or ratio > worst[place][0]:
            worst[place] = ratio, output
    dots = [_dot(row, ratio, output) for (row, _), (ratio, output) in worst.items()]
    drawn = [dot for dot in _most_sets(dots) if dot["ratio"] > 0]
    if not drawn:
        return None
    about = (
        "A dot per input set: the error divided by the limit that it comes nearest to, on a "
        "logarithmic axis. Dashed: 1, the limit. Hover or tap for figures."
    )
    if lacking:
        about += f" {plural(lacking, 'output')} not drawn: no limit, or no bound to the error."
    legend: list[tuple[str, str]] = []
    if not all(dot["ok"] for dot in dots):
        legend = [("within limits", "var(--c0)"), ("failed", "var(--bad)")]
    label = "Errors divided by their limits, by method and input set"
    data = {"dots": drawn}
    return Chart("Errors by their limits.", about, legend, label, "errors", data)


def _of_limit(output: Output, report: Json) -> float | str | None:
    """Return the greatest ratio of an error of an output to its limit."""
    if "of_limit" in output.errors:
        recorded: float | str | None = output.errors["of_limit"]
        return recorded
    # Of an older record.
    limit = (output.method["limits"] or report["settings"]).get("atol")
    largest = output.errors["max_abs"]
    if not limit or not isinstance(largest, int | float):
        return None
    return float(largest / limit)


def _dot(row: str, ratio: float, output: Output) -> Json:
    errors = output.errors
    figures = ", ".join(
        (
            f"mean {error(errors.get('mean_abs'))}",
            f"99.9 % {error(errors.get('p999_abs'))}",
            f"max {error(errors.get('max_abs'))}",
        )
    )
    about = f"{row}, {output.where}: {error(ratio)} of its limit; {figures}"
    if not output.ok:
        about += ", failed"
    return {"row": row, "ratio": ratio, "ok": output.ok, "description": about}


def _most_sets(dots: Sequence[Json]) -> list[Json]:
    """Keep the input sets with the greatest errors of each output, in their order."""
    dots_by_row: dict[str, list[Json]] = {}
    for dot in dots:
        dots_by_row.setdefault(dot["row"], []).append(dot)
    shown: list[Json] = []
    for row_dots in dots_by_row.values():
        ratios = sorted((dot["ratio"] for dot in row_dots), reverse=True)
        least = ratios[:_MOST_SETS][-1]
        shown += [dot for dot in row_dots if dot["ratio"] >= least][:_MOST_SETS]
    return shown
