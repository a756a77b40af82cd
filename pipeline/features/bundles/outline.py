"""The shape of the fields that bundled programs add to reports."""

from __future__ import annotations

from pipeline.report.method_records import SKIP

_SUITE = (
    {
        "cases": (list[str], "The origin of each case's inputs, by its number."),
        "rtol": float,
        "atol": float,
        "state": (
            list[str],
            "The buffers of the method's state; each case loads the method anew to reset them.",
        ),
        "left_out": [SKIP],
    },
    "A method in the bundled program; the runtime compares with `rtol` and `atol`.",
)
BUNDLE = (
    {"file": str, "size": int, "digest": str, "methods": {str: _SUITE}},
    "The bundled program, if the config requests one and the package matches its source.",
)
