"""The lines that `doit sensitivity` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.columns import columns
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_NAMED = 1  # modules of a group that was not taken apart
_ITSELF = "(its own operators)"


def describe_method(title: str, method: Mapping[str, Any]) -> Iterator[str]:
    """Yield what quantizing each module and kind of operator of a method costs.

    Args:
        title: package/method.
    """
    calls = plural(method["calls"], "example")
    yield f"{title}: SQNR {method['sqnr_db']:.1f} dB quantized, the worst output of {calls}"
    rows: list[Sequence[str]] = [("module", "SQNR alone", "noise", "saves", "")]
    for row in method["modules"]:
        rows.append(
            (
                _name_modules(row["modules"]),
                _format_decibels(row),
                f"{row['share']:.1%}",
                human_size(row["saved_bytes"]),
                _describe_choice(row, method),
            )
        )
    yield from _indent(rows)
    if len(method["operators"]) > 1:
        rows = [("operator", "SQNR alone", "calls", "saves")]
        for row in method["operators"]:
            saved = human_size(row["saved_bytes"])
            rows.append(
                (row["operator"], _format_decibels(row), str(row["count"]), saved)
            )
        yield from _indent(rows)
    yield f"  {method['runs']} runs in place of {method['one_by_one']}, one for each"
    yield f"  {_conclude(method)}"


def _name_modules(modules: Sequence[str]) -> str:
    names = [name or _ITSELF for name in modules]
    if len(names) > _MOST_NAMED:
        return f"{names[0]} ... ({len(names)} modules)"
    return ", ".join(names)


def _format_decibels(row: Mapping[str, Any]) -> str:
    sign = "" if row.get("measured", True) else "~"
    return f"{sign}{row['sqnr_db']:.1f} dB"


def _describe_choice(row: Mapping[str, Any], method: Mapping[str, Any]) -> str:
    if row["modules"] == [""]:
        return "in no module"
    if not row["noisiest"]:
        return ""
    return "keep in float" if method["overrides"] else "noisiest"


def _indent(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in columns(rows, right=(1, 2, 3)):
        yield f"  {line}".rstrip()


def _conclude(method: Mapping[str, Any]) -> str:
    """Say what follows from the probes, which is no more than an expectation."""
    floor = method["floor_db"]
    if not method["complete"]:
        return "the budget was spent: no proposal; raise it with --budget SECONDS"
    if floor is None:
        return "no floor to reach: give --floor DB, or `min_sqnr` in the config"
    if method["sqnr_db"] >= floor:
        return f"reaches {floor:g} dB as it is: nothing to keep in float"
    if not method["reached"]:
        return (
            f"can't reach {floor:g} dB by `modules`: what stands in no module of its own carries "
            "the noise; see `operators` of `quantize`"
        )
    names = listed(method["kept"])
    return f"keep in float for {floor:g} dB: {names}; expected {method['expected_db']:.1f} dB"


def describe_verification(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the package gives that was built with the proposal."""
    verified = record["verified"]
    if verified is None:
        return
    for name, figures in verified["methods"].items():
        method = record["methods"][name]
        if method["overrides"]:
            reached = (
                "reached" if figures["sqnr_db"] >= method["floor_db"] else "NOT reached"
            )
            yield (
                f"{record['package']}/{name}: quantized so, SQNR {figures['sqnr_db']:.1f} dB on "
                f"{plural(figures['calls'], 'example')} (was {method['sqnr_db']:.1f}): "
                f"{method['floor_db']:g} dB {reached}"
            )
            for kind, members in method["overrides"].items():
                yield f"  {kind}: {_show(members)}"
    before, after = record["bytes"], verified["bytes"]
    sizes = f"{human_size(before)} -> {human_size(after)}"
    yield f"{record['package']}: {sizes} ({after - before:+,} bytes)"


def _show(value: Any) -> str:
    """Write overrides as a config has them."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key}: {_show(inner)}" for key, inner in value.items())
        return f"{{{pairs}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)
