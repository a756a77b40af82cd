"""The page of one package: the verdict, what failed and where, then figures and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.reports import charts, figures, tables
from pipeline.reports.colours import LEFT, of_backends, of_kind
from pipeline.reports.drawing import NARROW, WIDE, draw
from pipeline.reports.excerpts import excerpts
from pipeline.reports.tables import Cell, Table
from pipeline.reports.templating import page

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    legend: Sequence[tuple[str, str]]
    svg: Markup


def package_page(report: Json, sources: Mapping[str, str]) -> bytes:
    """One self-contained HTML file. Equal records and sources give equal bytes.

    Args:
        sources: texts of the files that `excerpts.files` names, by their paths in the workspace.
    """
    parts = {
        "name": report["package"],
        "ok": report["ok"],
        "summary": _summary(report),
        "about": _about(report),
        "facts": list(_facts(report)),
        "failures": list(_failures(report)),
        "culprits": list(_culprits(report)),
        "gates": _gates(report),
        "baseline": _baseline(report),
        "limits": _limits(report["settings"]),
        "methods": _methods(report),
        "errors": _errors(report),
        "skipped": _skipped(report),
        **_delegation(report.get("delegation") or {}),
        "left_float": _left_float(report.get("left_float") or {}),
        **_contents(report.get("contents")),
        **_latency(report),
        "calls": _calls(report),
        "excerpts": excerpts(report, sources),
        "files": _files(report),
        "settings": _settings(report),
    }
    return page("package.html.j2", sections=list(_sections(parts)), **parts)


def _sections(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if parts["failures"]:
        yield "failures", "What failed"
    if parts["gates"] or parts["baseline"]:
        yield "gates-section", "Gates"
    yield "numerics-section", "Numerics"
    for name, title in (
        ("delegation", "Delegation"),
        ("contents", "Contents"),
        ("latency", "Latency"),
    ):
        if parts[name]:
            yield f"{name}-section", title
    yield "calls-section", "Calls"
    if parts["excerpts"]:
        yield "source-section", "Lines"
    yield "files-section", "Files"


# The head


def _summary(report: Json) -> str:
    methods = report["methods"]
    if not report["ok"]:
        failed = sum(not method["ok"] for method in methods)
        gates = sum(not gate["ok"] for gate in report.get("gates") or ())
        told = [
            f"{failed} of {figures.count(len(methods), 'method')} differ from the source"
            if failed
            else "",
            f"{figures.count(gates, 'gate')} not met" if gates else "",
        ]
        words = "; ".join(part for part in told if part)
        return f"{words or figures.count(len(report['failures']), 'failure')}."
    unrun = sum(bool(method["not_run"]) for method in methods)
    told_unrun = f" {unrun} of them could not be run on this machine." if unrun else ""
    same = "is the same function as its source" if len(methods) == 1 else (
        "are the same functions as their sources"
    )
    return f"{figures.count(len(methods), 'method')} {same}, within the limits.{told_unrun}"


def _about(report: Json) -> str:
    told = [f"{name} {report[name]}" for name in ("model", "target") if report.get(name)]
    return ", ".join(told)


def _facts(report: Json) -> Iterator[tuple[str, str, str]]:
    sizes = report.get("sizes") or {}
    if sizes:
        total = sum(sizes.values())
        yield "Size", figures.size(total), f"{total:,} bytes"
    counts = list((report.get("delegation") or {}).values())
    nodes = sum(each["nodes"] for each in counts)
    if nodes:
        inside = sum(each["delegated_nodes"] + figures.own_kernels(each) for each in counts)
        yield "Delegated", figures.percent(inside / nodes), f"{inside:,} of {nodes:,} nodes"
    ran = [method for method in report["methods"] if method["runs"]]
    if ran:
        worst = min(ran, key=lambda m: _order_of_sqnr(m["sqnr_db"]))
        yield "Worst SQNR", figures.decibel(worst["sqnr_db"]), f"in {worst['method']}"
        largest = max(ran, key=lambda m: figures.number(m["max_abs"]))
        yield "Greatest error", figures.error(largest["max_abs"]), f"in {largest['method']}"


def _order_of_sqnr(value: float | str | None) -> float:
    """Undefined counts as exact: it is so where all expected values are zero, or no numbers."""
    return figures.number("inf") if value is None else figures.number(value)


# What failed


def _failures(report: Json) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for method in report["methods"]:
        for failure in method["failures"]:
            where = ", ".join(part for part in (failure["inputs"], failure["output"]) if part)
            what = f"{where}: {failure['what']}" if where else failure["what"]
            told.add(f"{method['method']}: {what}")
            place = report.get("places", {}).get(f"methods.{method['method']}", "")
            yield {"method": method["method"], "what": what, "place": tables.source(place)}
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            told.add(gate["sentence"])
            yield {
                "method": "",
                "what": gate["sentence"],
                "place": tables.source(gate.get("place")),
            }
    for sentence in report["failures"]:
        if sentence not in told:
            yield {"method": "", "what": sentence, "place": Cell("")}


def _culprits(report: Json) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for method in report["methods"]:
        found = [
            {**culprit, "line": tables.source(culprit["line"]), "runs_in": _runs_in(culprit)}
            for culprit in method.get("culprits") or ()
        ]
        if found:
            yield method["method"], found


def _runs_in(culprit: Json) -> str:
    if culprit["backend"]:
        number = "" if culprit["partition"] is None else f" {culprit['partition']}"
        return f"in delegate{number} of {culprit['backend']}"
    return "on a portable kernel" if culprit["kind"] == "operator" else ""


_SHARES = ("min_delegated_nodes", "min_delegated_ops", "max_size_growth", "max_delegation_drop")


def _of_gate(name: str, value: float) -> str:
    if name in _SHARES:
        return figures.percent(value)
    if name in ("max_size", "max_planned_memory"):
        return figures.size(value)
    if name == "max_latency_ratio":
        return f"{value:.2f} ×"
    return figures.decibel(value) if "sqnr" in name else f"{value:g}"


def _gates(report: Json) -> Table:
    gates = sorted(report.get("gates") or (), key=lambda gate: gate["ok"])
    rows = [
        (
            tables.code(gate["gate"]),
            Cell(gate["method"] or "package"),
            tables.figure(gate["figure"], _of_gate(gate["gate"], gate["figure"])),
            tables.figure(
                gate["limit"],
                ("at least " if gate["gate"].startswith("min") else "at most ")
                + _of_gate(gate["gate"], gate["limit"]),
            ),
            tables.verdict(gate["ok"]),
            tables.source(gate.get("place")),
        )
        for gate in gates
    ]
    head = ("gate", "of", "figure", "limit", "verdict", "set in")
    return tables.table("gates", "Limits that the config sets", head, rows, (2, 3))


def _baseline(report: Json) -> Table:
    baseline = report.get("baseline") or {}
    rows = [
        (Cell(of), Cell(what), *cells)
        for of, what, cells in _compared(baseline, report)
    ]
    head = ("of", "figure", "accepted", "now", "change")
    return tables.table("baseline", "Against the accepted baseline", head, rows, (2, 3, 4))


def _compared(baseline: Json, report: Json) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
    if "size" in baseline:
        now = (report.get("contents") or {}).get("size") or sum(report.get("sizes", {}).values())
        yield "package", "size", _change(baseline["size"], now, figures.size, less_is_better=True)
    own = {method["method"]: method for method in report["methods"]}
    for name, then in sorted((baseline.get("methods") or {}).items()):
        counts = (report.get("delegation") or {}).get(name)
        if counts and "nodes" in then:
            was, now = figures.delegated(then), figures.delegated(counts)
            if was is not None and now is not None:
                yield name, "nodes delegated", _change(was, now, figures.percent)
        arenas = ((report.get("contents") or {}).get("methods") or {}).get(name)
        if arenas and isinstance(then.get("planned_memory"), int):
            now = sum(arena["size"] for arena in arenas["planned_memory"])
            cells = _change(then["planned_memory"], now, figures.size, less_is_better=True)
            yield name, "planned memory", cells
        was = _least(then.get("sqnr_db"))
        if name in own and was is not None:
            now_db = own[name]["sqnr_db"]
            if isinstance(now_db, int | float):
                yield name, "SQNR", _change(was, now_db, figures.decibel)


def _least(values: Any) -> float | None:
    known = [v for v in (values if isinstance(values, list) else [values]) if v is not None]
    return min(known, default=None)


def _change(was: float, now: float, style: Any, less_is_better: bool = False) -> tuple[Cell, ...]:
    step = now - was if style(now) != style(was) else 0.0
    worse = step > 0 if less_is_better else step < 0
    sign = "+" if step > 0 else "−"
    kind = "" if not step else "bad" if worse else "good"
    relative = f" ({sign}{figures.percent(abs(step) / was)})" if less_is_better and was else ""
    text = f"{sign}{style(abs(step))}{relative}" if step else "none"
    return tables.figure(was, style(was)), tables.figure(now, style(now)), Cell(text, step, kind=kind)


# Numerics

_LIMITS = {
    "max_mean_abs": "mean absolute error at most {:g}",
    "max_p999_abs": "99.9th percentile at most {:g}",
    "max_relative": "relative error at most {:g}",
    "min_sqnr": "SQNR at least {:g} dB",
    "min_cosine": "cosine at least {:g}",
    "min_agreement": "greatest values at the same place in at least {:.1%} of rows",
}


def _limits(settings: Json) -> str:
    told = []
    if "atol" in settings:
        told.append(f"absolute error at most {settings['atol']:g} + {settings['rtol']:g} × |expected|")
    given = ((words, settings.get(name)) for name, words in _LIMITS.items())
    told += [words.format(limit) for words, limit in given if limit is not None]
    return f"Held to: {'; '.join(told)}." if told else ""


def _methods(report: Json) -> Table:
    places = report.get("places", {})
    rows = [
        (
            Cell(
                method["method"],
                kind="name",
                note="with state" if method["state"] else method["kind"],
                href=tables.source(places.get(f"methods.{method['method']}")).href,
            ),
            tables.verdict(method["ok"], bool(method["not_run"])),
            Cell(str(len(method["runs"])), len(method["runs"])),
            *(
                tables.figure(method.get(name), style(method.get(name)))
                if method["runs"]
                else Cell(figures.NOTHING, figures.number(None), kind="soft")
                for name, _, style in _FIGURES
            ),
        )
        for method in report["methods"]
    ]
    head = ("method", "verdict", "calls", *(title for _, title, _ in _FIGURES))
    caption = "Worst figures of each method"
    return tables.table("methods", caption, head, rows, range(2, len(head)))


_FIGURES = (
    ("max_abs", "max error", figures.error),
    ("p999_abs", "99.9 %", figures.error),
    ("mean_abs", "mean", figures.error),
    ("relative", "relative", figures.error),
    ("sqnr_db", "SQNR", figures.decibel),
    ("cosine", "cosine", figures.ratio),
    ("agreement", "agreement", figures.share),
)


def _outputs(report: Json) -> Iterator[tuple[Json, Json, int, Json]]:
    for method in report["methods"]:
        for run in method["runs"]:
            for index, output in enumerate(run["outputs"]):
                yield method, run, index, output


def _where(run: Json) -> str:
    if run.get("step"):
        return f"{run['origin']} (call {run['step']} from {run['sequence']})"
    return str(run["origin"])


def _failed(method: Json, run: Json, index: int) -> bool:
    return any(
        failure["inputs"] in (_where(run), run["origin"])
        and failure["output"] in ("", f"output[{index}]")
        for failure in method["failures"]
    )


_MOST_SETS = 16  # of one output in the picture of errors; the worst


def _errors(report: Json) -> Chart | None:
    """A line for each output and input set; of the calls on one set in a method with state, the
    worst."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    limits: dict[str, float] = {}
    unbounded = 0
    for method, run, index, output in _outputs(report):
        several = len(run["outputs"]) > 1
        row = f"{method['method']}, output {index}" if several else str(method["method"])
        limit = (method["limits"] or report["settings"]).get("atol")
        if limit:
            limits[row] = limit
        if not isinstance(output["max_abs"], int | float):
            unbounded += 1
            continue
        ok = not _failed(method, run, index)
        figure = {
            "row": row,
            "mean": _plain(output["mean_abs"]),
            "p999": _plain(output.get("p999_abs")),
            "max": output["max_abs"],
            "ok": ok,
            "told": f"{row}, {_where(run)}: mean {figures.error(output['mean_abs'])}, 99.9 % "
            f"{figures.error(output.get('p999_abs'))}, max {figures.error(output['max_abs'])}"
            + ("" if ok else ", failed"),
        }
        key = (row, str(run["origin"]))
        if key not in worst or worst[key]["max"] < figure["max"]:
            worst[key] = figure
    rows = _most(list(worst.values()))
    wide, narrow = (charts.errors(rows, limits, width) for width in (WIDE, NARROW))
    if wide is None or narrow is None:
        return None
    about = (
        "A line per input set, from the mean over the 99.9th percentile (tick) to the greatest "
        "absolute error (dot), on a logarithmic axis. Dashed: the absolute tolerance."
    )
    if unbounded:
        about += f" {figures.count(unbounded, 'output')} not drawn, whose errors have no bound."
    legend = [("within limits", "var(--c0)"), ("failed", "var(--bad)")]
    legend = legend if any(not row["ok"] for row in rows) else []
    svg = draw(wide, narrow, "Distribution of absolute errors by method and input set")
    return Chart("Errors.", about, legend, svg)


def _most(rows: Sequence[Json]) -> list[Json]:
    """Of each output the sets with the greatest errors, in their order."""
    kept = []
    for name in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == name]
        least = sorted((row["max"] for row in own), reverse=True)[:_MOST_SETS][-1]
        kept += [row for row in own if row["max"] >= least][:_MOST_SETS]
    return kept


def _plain(value: float | str | None) -> float:
    return value if isinstance(value, int | float) else 0.0


def _skipped(report: Json) -> Table:
    rows = [
        (Cell(m["method"], kind="name"), Cell("all"), Cell(m["not_run"], kind="wide"))
        for m in report["methods"]
        if m["not_run"]
    ]
    rows += [
        (
            Cell(method["method"], kind="name"),
            Cell(skip["origin"]),
            Cell(f"the source program itself fails: {skip['reason']}", kind="wide"),
        )
        for method in report["methods"]
        for skip in method["skipped"]
    ]
    return tables.table("skipped", "Not run", ("method", "input set", "why"), rows)


def _calls(report: Json) -> Table:
    rows = [
        (
            Cell(method["method"], kind="name"),
            Cell(_where(run) + (f", output {index}" if len(run["outputs"]) > 1 else "")),
            Cell(output["mismatch"], kind="bad")
            if output.get("mismatch")
            else tables.verdict(not _failed(method, run, index)),
            *(tables.figure(output.get(n), style(output.get(n))) for n, _, style in _FIGURES),
        )
        for method, run, index, output in _outputs(report)
    ]
    titles = (title for _, title, _ in _FIGURES)
    head = ("method", "input set", "verdict", *titles)
    return tables.table("calls", "Outputs of every call", head, rows, range(3, len(head)))


# Delegation


def _delegation(methods: Mapping[str, Json]) -> dict[str, Any]:
    if not methods:
        return {"delegation": None}
    legend: dict[str, str] = {}
    for counts in methods.values():
        legend |= {name: colour for name, colour, _ in charts.delegation_parts(counts)}
    drawn = {
        m: counts["stretches"]
        for m, counts in methods.items()
        if counts.get("stretches") and counts["nodes"]
    }
    return {
        "delegation": Chart(
            "Nodes by who runs them.",
            "A node is a call of an operator, in control flow too; moves of data are none.",
            sorted(legend.items(), key=lambda entry: entry[1] == LEFT),
            draw(
                charts.delegation(methods, WIDE),
                charts.delegation(methods, NARROW),
                "Share of nodes delegated, by method",
            ),
        ),
        "stretches": Chart(
            "Regions of the graph.",
            "Each method from its first node to its last: what each delegate runs, and what was "
            "left between. Hover for the operators.",
            [],
            draw(
                charts.stretches(drawn, WIDE),
                charts.stretches(drawn, NARROW),
                "Delegated regions in the order of each method's graph",
            ),
        )
        if drawn
        else None,
        "counts": _counts(methods),
        "left": _left(methods),
        "kernels": _kernels(methods),
    }


def _counts(methods: Mapping[str, Json]) -> Table:
    rows = []
    for method, counts in sorted(methods.items()):
        border = counts.get("border")
        share = figures.delegated(counts)
        operators = counts["delegated_operators"], counts["operators"]
        crossing = (
            sum(border[side]["bytes"] for side in ("into", "out_of")) if border else None
        )
        rows.append(
            (
                Cell(method, kind="name"),
                Cell(
                    f"{counts['delegated_nodes']} of {counts['nodes']}",
                    share,
                    note=figures.percent(share) if share is not None else "",
                ),
                Cell(
                    f"{operators[0]} of {operators[1]}",
                    operators[0] / operators[1] if operators[1] else None,
                ),
                Cell(
                    ", ".join(f"{n} {b}" for b, n in sorted(counts["partitions"].items()))
                    or "none",
                    sum(counts["partitions"].values()),
                ),
                tables.figure(crossing, figures.size(crossing)),
                tables.figure(border["copies"], str(border["copies"]))
                if border
                else Cell(figures.NOTHING, figures.number(None)),
                Cell(str(counts.get("subgraphs", figures.NOTHING)), counts.get("subgraphs")),
            )
        )
    head = (
        "method",
        "nodes delegated",
        "operators delegated",
        "partitions",
        "bytes over borders",
        "copies there",
        "sub-graphs",
    )
    return tables.table("delegation", "Delegation by method", head, rows, (1, 2, 4, 5, 6))


def _left(methods: Mapping[str, Json]) -> Table:
    """Calls left to portable kernels, those alike as one row."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for method, counts in sorted(methods.items()):
        known = counts.get("left")
        if known is None:
            known = [
                {"operator": name}
                for name, calls in counts["undelegated"].items()
                for _ in range(calls)
            ]
        for each in known:
            key = (method, each["operator"], each.get("reason", ""), each.get("line", ""))
            groups.setdefault(key, []).append(each.get("module", ""))
    ranked = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    rows = [
        (
            tables.code(operator, note=_modules(modules)),
            Cell(method),
            Cell(str(len(modules)), len(modules)),
            Cell(reason or figures.NOTHING, kind="" if reason else "soft"),
            tables.source(line),
        )
        for (method, operator, reason, line), modules in ranked
    ]
    head = ("operator", "method", "calls", "why", "source")
    return tables.table("left", "Left to portable kernels", head, rows, (2,))


def _modules(names: Sequence[str]) -> str:
    known = sorted({name for name in names if name})
    more = f" and {len(known) - 2} more" if len(known) > 2 else ""
    return f"in {', '.join(known[:2])}{more}" if known else ""


def _kernels(methods: Mapping[str, Json]) -> Table:
    rows = [
        (Cell(method, kind="name"), Cell(backend), tables.code(name), Cell(str(calls), calls))
        for method, counts in sorted(methods.items())
        for backend, own in sorted(counts.get("kernels", {}).items())
        for name, calls in sorted(own.items())
    ]
    head = ("method", "backend", "operator", "calls")
    return tables.table("kernels", "Kernels of backends", head, rows, (3,))


def _left_float(methods: Mapping[str, int]) -> Table:
    why = "in control flow, whose bodies no quantizer looks into"
    rows = [(Cell(m, kind="name"), Cell(str(n), n), Cell(why)) for m, n in sorted(methods.items())]
    head = ("method", "operators", "where")
    return tables.table("left-float", "Kept in floating point", head, rows, (1,))


# Contents

_KINDS = {
    "program": "program",
    "constants": "constants",
    "delegate": "delegates",
    "named_data": "named data",
    "mutable": "mutable data",
    "padding": "padding",
}
_MOST_TILES = 120  # of one kind; further segments are drawn as one


def _contents(contents: Json | None) -> dict[str, Any]:
    if not contents:
        return {"contents": None}
    segments = contents["segments"]
    kinds = {kind: _KINDS.get(kind, kind) for kind in (s["kind"] for s in segments)}
    totals = {k: sum(s["size"] for s in segments if s["kind"] == k) for k in kinds}
    legend = [
        (f"{kinds[kind]} {figures.size(totals[kind])}", of_kind(kind))
        for kind in sorted(kinds, key=lambda kind: -totals[kind])
    ]
    tiles = list(_tiles(segments))
    return {
        "contents": True,
        "treemap": Chart(
            "Bytes of the package.",
            "As areas, by what they are. Hover for names.",
            legend,
            draw(
                charts.treemap(tiles, WIDE, 380),
                charts.treemap(tiles, NARROW, 420),
                "Size of each segment of the package",
            ),
        )
        if tiles
        else None,
        "segments": _segments(segments, contents["size"]),
        "memory": _memory(contents["methods"]),
        "tensors": _tensors(contents["tensors"]),
        "shared": _shared(contents["shared"]),
        "twice": _twice(contents["twice"]),
    }


def _tiles(segments: Sequence[Json]) -> Iterator[dict[str, Any]]:
    for kind in dict.fromkeys(segment["kind"] for segment in segments):
        own = sorted((s for s in segments if s["kind"] == kind), key=lambda s: -s["size"])
        for segment in own[:_MOST_TILES]:
            yield _tile(segment, segment["name"], _described(segment))
        if rest := own[_MOST_TILES:]:
            size = sum(segment["size"] for segment in rest)
            name = f"{len(rest)} more"
            told = f"{name} of {_KINDS.get(kind, kind)}: {figures.size(size)}"
            yield _tile({"kind": kind, "size": size}, name, told)


def _tile(segment: Json, name: str, told: str) -> dict[str, Any]:
    kind = str(segment["kind"])
    return {"name": name, "size": segment["size"], "kind": kind, "group": kind, "told": told}


def _described(segment: Json) -> str:
    of = f" of {', '.join(segment['methods'])}" if segment["methods"] else ""
    name = segment["name"] or _KINDS.get(segment["kind"], segment["kind"])
    return f"{name}{of}: {figures.size(segment['size'])} ({segment['size']:,} bytes)"


def _segments(segments: Sequence[Json], whole: int) -> Table:
    rows = [
        (
            Cell(_KINDS.get(each["kind"], each["kind"])),
            tables.code(each["name"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(figures.percent(each["size"] / whole), each["size"]) if whole else Cell(""),
            Cell(", ".join(each["methods"]) or figures.NOTHING),
            Cell(each["backend"] or figures.NOTHING),
            Cell(f"{each['offset']:,}", each["offset"]),
        )
        for each in sorted(segments, key=lambda s: (-s["size"], s["file"], s["offset"]))
    ]
    head = ("kind", "name", "bytes", "share", "methods", "backend", "offset")
    return tables.table("segments", "Segments", head, rows, (2, 3, 6))


def _memory(methods: Mapping[str, Json]) -> Table:
    rows = []
    for method, own in sorted(methods.items()):
        arenas = [arena["size"] for arena in own["planned_memory"]]
        told = ", ".join(f"arena {a['arena']}: {a['size']:,}" for a in own["planned_memory"])
        rows.append(
            (
                Cell(method, kind="name"),
                Cell(f"{sum(arenas):,}", sum(arenas), note=told if len(arenas) > 1 else ""),
                Cell(f"{own['constants']:,}", own["constants"]),
                Cell(f"{own['delegated']:,}", own["delegated"]),
                Cell(str(len(own["delegates"])), len(own["delegates"])),
                Cell(str(own["instructions"]), own["instructions"]),
            )
        )
    head = ("method", "planned memory", "constants", "delegated", "delegates", "instructions")
    caption = "Bytes that each method needs"
    return tables.table("memory", caption, head, rows, range(1, 6))


def _tensors(tensors: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["name"] or each.get("key", "")),
            Cell(each["dtype"]),
            Cell(" × ".join(str(size) for size in each["shape"]) or "scalar"),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(_KINDS.get(each.get("where", ""), each.get("where", ""))),
            Cell(", ".join(each.get("methods", ())) or figures.NOTHING),
        )
        for each in tensors
    ]
    head = ("tensor", "dtype", "shape", "bytes", "in", "methods")
    return tables.table("tensors", "Largest tensors", head, rows, (3,))


def _shared(shared: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["what"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(", ".join(each["methods"])),
        )
        for each in shared
    ]
    return tables.table("shared", "Stored once for several", ("what", "bytes", "methods"), rows, (1,))


def _twice(twice: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["what"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(str(each["times"]), each["times"]),
            Cell("; ".join(each["where"]), kind="wide", note=each.get("advice", "")),
        )
        for each in twice
    ]
    head = ("what", "bytes", "times", "where")
    return tables.table("twice", "Stored more than once", head, rows, (1, 2))


# Latency


def _latency(report: Json) -> dict[str, Any]:
    known = [(m["method"], m["latency"]) for m in report["methods"] if m.get("latency")]
    if not known:
        return {"latency": None}
    points = [
        {"row": method, "what": what, "told": f"{method}, {words}: {_spread(each[key])}"}
        | {name: each[key][name] for name in ("low", "median", "high")}
        for method, each in known
        for what, words, key in (
            ("package", "the package", "steady_ms"),
            ("source", "the source program", "source_ms"),
        )
    ]
    rows = [
        (
            Cell(method, kind="name"),
            _time(each["load_ms"]),
            tables.figure(each["first_ms"], figures.milliseconds(each["first_ms"])),
            _time(each["steady_ms"]),
            _time(each["source_ms"]),
            tables.figure(each["ratio"], f"{each['ratio']:.2f} ×"),
        )
        for method, each in known
    ]
    head = ("method", "load", "first call", "further calls", "source program", "ratio")
    return {
        "latency": Chart(
            "Further calls.",
            "Median and quartiles of the package and of its source in eager mode, on one thread of "
            "the machine that validated; a device is another matter.",
            [("package", "var(--c0)"), ("source program", "var(--soft)")],
            draw(
                charts.latency(points, WIDE),
                charts.latency(points, NARROW),
                "Latency of the package and of its source program",
            ),
        ),
        "times": tables.table("times", "Medians, with quartiles", head, rows, range(1, 6)),
    }


def _spread(spread: Json) -> str:
    low, high = (figures.milliseconds(spread[name]) for name in ("low", "high"))
    return f"{figures.milliseconds(spread['median'])} ({low} to {high}, {spread['runs']} runs)"


def _time(spread: Json) -> Cell:
    note = f"{spread['low']:.3g}–{spread['high']:.3g}"
    return Cell(figures.milliseconds(spread["median"]), spread["median"], note=note)


# The rest


def _files(report: Json) -> Table:
    sizes = report.get("sizes") or {}
    rows = [
        (
            Cell(name, href=name, kind="code"),
            tables.figure(sizes.get(name), f"{sizes[name]:,}" if name in sizes else figures.NOTHING),
            tables.code(digest),
        )
        for name, digest in sorted((report.get("files") or {}).items())
    ]
    return tables.table("files", "Files", ("file", "bytes", "BLAKE3"), rows, (1,))


def _settings(report: Json) -> Table:
    places = report.get("places", {})
    rows = [
        (
            tables.code(name),
            Cell(str(value) if not isinstance(value, float) else f"{value:g}"),
            tables.source(places.get(f"validate.{name}")),
        )
        for name, value in report["settings"].items()
        if value is not None
    ]
    return tables.table("settings", "Validated with", ("setting", "value", "set in"), rows)
