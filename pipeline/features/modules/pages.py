"""The page of a package's modules, and the table in its report that links to the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.features.modules.names import FOLDED, KERNELS
from pipeline.features.modules.tree import Tree, delegated_share, make_tree
from pipeline.report.cells import figure, name
from pipeline.report.colours import LEFT, backend_colours
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import error, milliseconds, percent
from pipeline.report.quoted_files import is_inside, named_lines
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size
from pipeline.store.source_line import SourceLine, parse_source_line
from pipeline.store.visible import visible

PAGE = "modules.html"
Place = Callable[[SourceLine], str]  # returns the link to a line, or ""
_MOST_ROWS = 6_000  # per page, some 200 bytes each
_FEWEST_ROWS = 24  # per method, however many methods there are
_NARROWEST = 0.5  # the least width of a piece, in percent of the bar


def section(report: Json) -> ReportSection:
    """Return the report's section with a row for each method, which links to its modules."""
    rows: list[Row] = []
    for method in report["methods"]:
        calls = method.get("modules")
        if not calls:
            continue
        runners = Counter[str]()
        for call in calls:
            runners[call["runs_on"]] += call["count"]
        modules = {call["module"] for call in calls}
        rows.append(
            {
                "method": name(method["method"], href=_link(method["method"])),
                "modules": figure(len(modules)),
                "calls": figure(runners.total()),
                "delegated": figure(delegated_share(runners), percent),
                "folded by lowering": figure(runners[FOLDED]),
            }
        )
    table = DataTable("modules", "Calls of operators by module: open a method", rows)
    return ReportSection("modules", "Modules", table)


def _link(method: str) -> str:
    return f"{PAGE}#method-{quote(method)}"


def render_modules(
    report: Json,
    sources: Mapping[str, str | None],
    drops: Mapping[str, Sequence[float]],
) -> dict[str, bytes]:
    """Render the page: a tree of modules per method, with bars that show where their calls run."""
    methods = [method for method in report["methods"] if method.get("modules")]
    tensors = (report.get("contents") or {}).get("tensors", ())
    share = max(_FEWEST_ROWS, _MOST_ROWS // max(1, len(methods)))
    trees = []
    for method in methods:
        profile = (report.get("profiles") or {}).get(method["method"], {})
        tree = make_tree(method, tensors, profile.get("modules", {}), share)
        trees.append({**tree, "name": method["method"]})
    runners: set[str] = set()
    for tree in trees:
        runners |= tree["runners"].keys()
    colours = backend_colours(runners - {KERNELS, FOLDED}) | {KERNELS: LEFT}
    shown = {line.where for line in named_lines(report)}

    def place(line: SourceLine) -> str:
        if line.where in shown:
            return f"report.html#{line.where}"
        if line.file in report.get("sources", ()) and is_inside(line.file):
            return f"../../{quote(line.file)}#L{line.line}"
        return ""

    page = _template().render(
        package=report["package"],
        trees=[_describe(tree, colours, place) for tree in trees],
        legend=sorted(colours.items()),
    )
    return {PAGE: visible(page).encode()}


def _describe(tree: Tree, colours: Mapping[str, str], place: Place) -> dict[str, Any]:
    """Return the labels and pieces with which the page shows a module and the modules below it."""
    runners: Counter[str] = tree["runners"]
    words: list[str] = [plural(runners.total(), "call")]
    share = delegated_share(runners)
    if share is not None:
        words.append(f"{percent(share)} delegated")
    if tree["size"]:
        words.append(human_size(tree["size"]))
    if tree["time"]:
        words.append(milliseconds(tree["time"]))
    located = tree["error"]
    ranked = sorted(tree["children"], key=lambda child: -child["runners"].total())
    return {
        "name": tree["name"],
        "path": tree["path"],
        "words": ", ".join(words),
        "error": f"error {error(located['max_abs'])}" if located else "",
        "pieces": list(_make_pieces(runners, colours)),
        "calls": [_describe_call(call, place) for call in tree["calls"]],
        "children": [_describe(child, colours, place) for child in ranked],
    }


def _make_pieces(
    runners: Counter[str], colours: Mapping[str, str]
) -> Iterator[tuple[float, str]]:
    """Yield the width of each piece of a bar, in percent of the bar, and its colour."""
    whole = sum(count for runner, count in runners.items() if runner in colours)
    for runner, colour in sorted(colours.items()):
        if runners.get(runner):
            yield max(_NARROWEST, 100 * runners[runner] / whole), colour


def _describe_call(call: Json, place: Place) -> dict[str, Any]:
    line = parse_source_line(call["line"])
    href = place(line) if line else ""
    return {
        "operator": call["operator"],
        "count": call["count"],
        "runs_on": call["runs_on"],
        "code": line.code if line else "",
        "where": line.where if line else "",
        "href": href,
    }


@cache
def _template() -> Any:
    # Imported lazily: Markdown reports have only the table and don't need templates.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder, encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("modules.html.j2")
