"""The outline of what `doit sensitivity` prints with `--json` (`moments.Command.record`), of whose
packages `sensitivity.json` has one."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.forms import Count, Size

_DECIBELS = (float, "SQNR of the worst output on the worst example, at most 120")
_MODULE = {
    "module": (
        str,
        'the path of a module; `operator add` for a kind of operator that stands in none; "" for '
        "what can't be kept in float",
    ),
    "sqnr_db": (float, "where it alone is quantized"),
    "measured": (bool, "otherwise estimated from gradients"),
    "share": (float, "of the noise"),
    "saved_bytes": (Count, "of its weights, that quantizing saves"),
    "chosen": bool,
}
_METHOD = {
    "floor_db": (float, None, "to be reached; null where none is asked for"),
    "calls": (Count, "examples of a run"),
    "sqnr_db": _DECIBELS,
    "float_sqnr_db": (float, "with all its operators switched back to float"),
    "kept": ([str], "modules and operators that the proposal keeps in float"),
    "reached": (bool, "whether the runs reach the floor"),
    "complete": (bool, "whether the budget sufficed"),
    "expected_db": (float, "what the runs promise of the proposal"),
    "modules": ([_MODULE], "the noisiest first"),
    "operators": [
        {
            "operator": str,
            "count": Count,
            "sqnr_db": (float, "where this kind alone is quantized"),
            "saved_bytes": Count,
        }
    ],
    "runs": Count,
    "gradients": Count,
    "one_by_one": (Count, "runs that measuring each module alone would take"),
    "overrides": (
        {str: {str: Any}},
        "of `quantize` in the config: `modules` and `operators`, by name",
    ),
}
_PACKAGE = {
    "format": Literal[1],
    "package": str,
    "bytes": (Size, "of the files that a device loads"),
    "verified": (
        {
            "bytes": Size,
            "methods": {str: {"sqnr_db": _DECIBELS, "calls": Count}},
            "attempts": (Count, "at a proposal that reaches the floor"),
        },
        None,
        "of the package that was built with the proposal; null without one",
    ),
    "methods": {str: _METHOD},
}
SENSITIVITY = {
    "format": Literal[1],
    "packages": [_PACKAGE],
    "written": ([str], "the config files that `--write` changed"),
}
