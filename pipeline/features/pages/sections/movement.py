"""How much outputs change across calls, and where their sources give NaN or infinity.

An output that never changes proves nothing, however exactly it agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report.cells import figure, name, text, verdict_cell
from pipeline.report.elements import DataTable, Row
from pipeline.report.formatting import error, percent
from pipeline.store.errors import listed

Json = Mapping[str, Any]
_MOST_NAMED = 4
_FIXED = {
    "nothing": "a constant of the program",
    "sizes": "determined by the sizes of the inputs",
}
_REDRAWN = "moves only on other inputs of the source"


def movement_table(methods: Sequence[Json]) -> DataTable:
    """Return the table with a row for each output that was compared."""
    rows: list[Row] = []
    for method in methods:
        for record in method.get("movement", ()):
            rows.append({"method": name(method["method"]), **_row(record)})
    return DataTable("movement", "How far outputs move across calls", rows)


def _row(record: Json) -> Row:
    if record.get("redrawn"):
        note = _REDRAWN
    else:
        note = _FIXED.get(record.get("fixed", ""), "")
    why = record.get("reason", note)
    return {
        "output": record["output"],
        "calls": figure(record["calls"]),
        "moves by at most": figure(record["largest"], error),
        "on average": figure(record["typical"], error),
        "elements that move": figure(record["share"], percent),
        "judged": text("yes") if record["judged"] else verdict_cell("not judged"),
        "why": text(why, kind="wide"),
    }


def describe_nonfinite(methods: Sequence[Json]) -> Iterator[str]:
    """Yield a sentence for each method whose source gives NaN or infinity on the given examples."""
    for method in methods:
        outputs = [
            output for output in method.get("movement", ()) if output.get("nonfinite")
        ]
        if not outputs:
            continue
        where = listed([_count_nonfinite(output) for output in outputs], _MOST_NAMED)
        yield (
            f"On the examples, the source of {method['method']} returns NaN or infinity in "
            f"{where}."
        )


def _count_nonfinite(record: Json) -> str:
    values = f"{record['nonfinite']:,} of {record['example_values']:,} values"
    return f"{values} of {record['output']}"
