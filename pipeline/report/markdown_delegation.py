"""What a report says of delegation, as tables. Reads records only, and imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_SHOWN = 3  # lines and modules of a row


class Table(NamedTuple):
    """Cells are Markdown; columns in `numbers` hold numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


def delegation_tables(figures: Mapping[str, Json]) -> list[Table]:
    """Of the delegation of each method: shares, kernels of backends without a delegate, what is
    left to portable kernels and why, and what crosses borders."""
    own = sorted(figures.items())
    return [
        Table(
            "Delegation",
            ("method", "nodes delegated", "operators delegated", "backends", "sub-graphs"),
            [_shares(method, counts) for method, counts in own],
            numbers=(4,),
        ),
        Table(
            "Kernels of backends",
            ("method", "backend", "operators"),
            [
                (_code(method), backend, _calls(operators))
                for method, counts in own
                for backend, operators in counts.get("kernels", {}).items()
            ],
        ),
        Table(
            "Left to portable kernels",
            ("method", "operator", "times", "why", "lines", "modules"),
            [row for method, counts in own for row in _left(method, counts)],
            numbers=(2,),
        ),
        Table(
            "Across the borders of delegates",
            ("method", "in, per call", "out, per call", "copies at borders"),
            [_border(method, counts["border"]) for method, counts in own if counts["partitions"]],
            numbers=(3,),
        ),
    ]


def _shares(method: str, counts: Json) -> tuple[str, ...]:
    return (
        _code(method),
        _share(counts["delegated_nodes"], counts["nodes"]),
        _share(counts["delegated_operators"], counts["operators"]),
        "; ".join(
            f"{backend}: {_share(own['nodes'], counts['nodes'])} "
            f"in {_count(own['partitions'], 'partition')}"
            for backend, own in counts["backends"].items()
        )
        or "-",
        str(counts["subgraphs"]),
    )


def _left(method: str, counts: Json) -> Iterator[tuple[str, ...]]:
    """One row for each operator and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for each in counts["left"]:
        groups.setdefault((each["operator"], each["reason"]), []).append(each)
    for (operator, reason), calls in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        lines = [_code(call["line"]) for call in calls if call["line"]]
        modules = [_code(call["module"]) for call in calls if call["module"]]
        times = str(len(calls))
        yield _code(method), _code(operator), times, reason or "-", _few(lines), _few(modules)


def _few(told: Iterable[str]) -> str:
    """The first of them, each once, and how many more there are."""
    each = list(dict.fromkeys(told))
    more = [f"and {len(each) - _SHOWN} more"] if len(each) > _SHOWN else []
    return "; ".join([*each[:_SHOWN], *more]) or "-"


def _border(method: str, border: Json) -> tuple[str, ...]:
    return (
        _code(method),
        _crossing(border["into"]),
        _crossing(border["out_of"]),
        str(border["copies"]),
    )


def _crossing(crossing: Json) -> str:
    return f"{_count(crossing['tensors'], 'tensor')}, {human_size(crossing['bytes'])}"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def _calls(operators: Mapping[str, int]) -> str:
    """The most frequent first."""
    ranked = sorted(operators.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{_code(name)} {count}" for name, count in ranked)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _code(text: str) -> str:
    """As code, whatever it holds."""
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"
