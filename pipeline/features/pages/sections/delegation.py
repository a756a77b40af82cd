"""The section on delegation: nodes that backends run, and nodes left to portable kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.report.cells import code, figure, name, source, text
from pipeline.report.colours import LEFT, backend_colours
from pipeline.report.elements import Cell, Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.records import delegated_share, in_order, name_kernels
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_BARS = 12  # per chart; the list of methods has a bar for each
Piece = tuple[int, str, str]  # of a bar: nodes, colour, description


def section(report: Json) -> ReportSection:
    methods = in_order(report, report.get("delegation"))
    chosen = set(report.get("portable", ()))
    portable = {
        method: counts for method, counts in methods.items() if method in chosen
    }
    partitioned = {
        method: counts for method, counts in methods.items() if method not in chosen
    }
    undelegated: list[str] = []
    for counts in partitioned.values():
        undelegated += counts["undelegated"]
    left_title = f"Left to {name_kernels(undelegated)}"
    portable_title = "Methods without a partitioner, by choice"
    rows = [_counts(method, counts) for method, counts in methods.items()]
    return ReportSection(
        "delegation",
        "Delegation",
        _shares_chart(methods),
        _segments_chart(methods),
        DataTable("delegation", "Delegation by method", rows),
        DataTable("left", left_title, list(_undelegated_rows(partitioned))),
        DataTable(
            "portable", portable_title, list(_undelegated_rows(portable)), folded=True
        ),
        DataTable("kernels", "Kernels of backends", list(_kernel_rows(methods))),
        DataTable("left-float", "Not quantized", list(_float_rows(report))),
    )


def _kernel_rows(methods: Mapping[str, Json]) -> Iterator[Row]:
    for method, counts in methods.items():
        for backend, calls_by_operator in sorted(counts.get("kernels", {}).items()):
            for operator, calls in _ranked(calls_by_operator):
                yield {
                    "method": name(method),
                    "backend": text(backend),
                    "operator": code(operator),
                    "calls": figure(calls),
                }


def _float_rows(report: Json) -> Iterator[Row]:
    for method, number in in_order(report, report.get("left_float")).items():
        yield {
            "method": name(method),
            "operators in floating point": figure(number),
            "where": "control flow, whose bodies no quantizer looks into",
        }


def _ranked(calls: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return operators with their numbers of calls, the most frequent first."""
    return sorted(calls.items(), key=lambda entry: (-entry[1], entry[0]))


def _shares_chart(methods: Mapping[str, Json]) -> Chart | None:
    legend: dict[str, str] = {}
    rows: dict[str, list[Piece]] = {}
    least = sorted(methods, key=lambda method: _sort_share(methods[method]))
    for method in least[:_MOST_BARS]:
        counts = methods[method]
        pieces: list[Piece] = []
        for runner, colour, nodes in _parts(counts):
            legend[runner] = colour
            words = f"{method}: {runner}: {_share_words(nodes, counts['nodes'])}"
            pieces.append((nodes, colour, words))
        share = delegated_share([counts])
        if share is None:
            amount = "no operators"
        else:
            amount = percent(share)
        rows[f"{method}  {amount}"] = pieces
    if not rows:
        return None
    about = "A node is a call of an operator, including calls in control flow."
    if len(methods) > _MOST_BARS:
        about += (
            f" The {_MOST_BARS} of {len(methods)} methods with the least delegation."
        )
    names = sorted(legend.items(), key=lambda entry: entry[1] == LEFT)
    label = "Share of nodes delegated, by method"
    data = {"rows": rows, "percents": True}
    return Chart("Nodes by what runs them.", about, names, label, "bars", data)


def _sort_share(counts: Json) -> float:
    share = delegated_share([counts])
    return 2.0 if share is None else share


def _share_words(amount: int, nodes: int) -> str:
    return f"{amount} of {nodes} nodes ({percent(amount / nodes)})"


def _parts(counts: Json) -> Iterator[tuple[str, str, int]]:
    """Yield each runner of a method's nodes: its name, its colour, and its number of nodes."""
    backends: dict[str, int] = {}
    for backend, share in (counts.get("backends") or {}).items():
        backends[backend] = share["nodes"]
    if not backends and counts["delegated_nodes"]:  # an older record only has their sum
        backends[" + ".join(sorted(counts["partitions"]))] = counts["delegated_nodes"]
    kernels: dict[str, int] = {}
    for backend, calls in counts.get("kernels", {}).items():
        kernels[backend] = sum(calls.values())
    colours = backend_colours([*backends, *kernels])
    for backend, nodes in sorted(backends.items()):
        yield backend, colours[backend], nodes
    for backend, nodes in sorted(kernels.items()):
        yield f"{backend} kernels", colours[backend], nodes
    portable = counts["nodes"] - counts["delegated_nodes"] - sum(kernels.values())
    if portable:
        yield f"left to {name_kernels(counts['undelegated'])}", LEFT, portable


def _segments_chart(methods: Mapping[str, Json]) -> Chart | None:
    segmented = {
        method: counts["segments"]
        for method, counts in methods.items()
        if counts.get("segments") and counts["nodes"]
    }
    most = sorted(segmented, key=lambda method: -len(segmented[method]))[:_MOST_BARS]
    rows: dict[str, list[Piece]] = {}
    for method, segments in segmented.items():
        if method in most:
            rows[method] = list(_segments(method, segments))
    if not rows:
        return None
    about = (
        "Each method from its first node to its last: what each delegate runs, and what is left "
        "between delegates. Hover or tap for the operators."
    )
    if len(segmented) > _MOST_BARS:
        about += f" The {_MOST_BARS} of {len(segmented)} methods with the most regions."
    label = "Delegated regions in the order of each method's graph"
    return Chart("Regions of the graph.", about, [], label, "bars", {"rows": rows})


def _segments(method: str, segments: Sequence[Json]) -> Iterator[Piece]:
    colours = backend_colours(
        segment["backend"] for segment in segments if segment["backend"]
    )
    start = 1
    for index, segment in enumerate(segments):
        nodes = segment["nodes"]
        backend = segment["backend"]
        end = start + nodes
        where = f"nodes {start}–{end - 1}, {backend or 'left'}"
        operators = listed(_describe_calls(segment["operators"]), 6)
        description = f"{method}, {where}: {operators} [{index}]"
        yield nodes, colours.get(backend, LEFT), description
        start = end


def _describe_calls(calls_by_operator: Mapping[str, int]) -> list[str]:
    words: list[str] = []
    for operator, calls in _ranked(calls_by_operator):
        words.append(f"{operator} ×{calls}" if calls > 1 else operator)
    return words


def _counts(method: str, counts: Json) -> Row:
    boundary = counts.get("boundary") or {}
    delegated = counts["delegated_operators"]
    operators = counts["operators"]
    # The share counts nodes run by backends' own kernels.
    share = delegated_share([counts])
    return {
        "method": name(method),
        "nodes delegated": _part(counts["delegated_nodes"], counts["nodes"], share),
        "operators delegated": _part(
            delegated, operators, _share(delegated, operators)
        ),
        "backends": text("; ".join(_describe_backends(counts))),
        "into delegates": _crossing(boundary.get("into")),
        "out of delegates": _crossing(boundary.get("out_of")),
        "copies there": figure(boundary.get("copies")),
        "sub-graphs": figure(counts.get("subgraphs")),
    }


def _describe_backends(counts: Json) -> Iterator[str]:
    """Yield the nodes and partitions of each backend; an older record only has partitions."""
    backends = counts.get("backends")
    if not backends:
        for backend, number in counts["partitions"].items():
            yield f"{backend}: {plural(number, 'partition')}"
        return
    for backend, share in backends.items():
        yield f"{backend}: {share['nodes']} in {plural(share['partitions'], 'partition')}"


def _share(part: int, whole: int) -> float | None:
    if whole:
        return part / whole
    return None


def _part(part: int, whole: int, share: float | None) -> Cell:
    return figure(share, lambda _: f"{part} of {whole}", note=percent(share))


def _crossing(crossing: Json | None) -> Cell:
    if crossing is None:
        return figure(None)
    return figure(
        crossing["bytes"],
        human_size,
        note=plural(crossing["tensors"], "tensor"),
    )


def _undelegated_rows(methods: Mapping[str, Json]) -> Iterator[Row]:
    """Yield the calls left to portable kernels, the most frequent first, equal ones in one row."""
    modules_by_call: dict[tuple[str, str, str, str], list[str]] = {}
    for method, counts in methods.items():
        for call in _list_undelegated(counts):
            key = (
                method,
                call["operator"],
                call.get("reason", ""),
                call.get("line", ""),
            )
            modules_by_call.setdefault(key, []).append(call.get("module", ""))
    ranked = sorted(
        modules_by_call.items(),
        key=lambda entry: (-len(entry[1]), entry[0]),
    )
    for (method, operator, reason, line), modules in ranked:
        named = sorted(set(filter(None, modules)))
        yield {
            "operator": code(operator, note=f"in {listed(named, 2)}" if named else ""),
            "method": name(method),
            "calls": figure(len(modules)),
            "why": text(reason),
            "source": source(line),
        }


def _list_undelegated(counts: Json) -> Sequence[Json]:
    """Return the calls that no delegate took; an older record only counts them by operator."""
    calls: Sequence[Json] | None = counts.get("left")
    if calls is not None:
        return calls
    numbered: list[Json] = []
    for operator, number in counts["undelegated"].items():
        numbered += [{"operator": operator}] * number
    return numbered
