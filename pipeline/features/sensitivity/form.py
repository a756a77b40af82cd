"""The outline of the output of `doit sensitivity --json` (`moments.Command.record`).

`sensitivity.json` holds the part for one package.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, Size

_DECIBELS = (float, "SQNR of the worst output on the worst example, at most 120")
_SPREAD = {"median": float, "low": float, "high": float}
_IN_FLOAT = {
    "bytes": (int, "additional bytes of the files that a device loads"),
    "metric?": (float, "change of the requested metric's value"),
    "ms": (
        _SPREAD,
        None,
        "additional time of a call on this machine: median and quartiles over rounds in which "
        "packages took turns; null if it can't run them",
    ),
}
_MODULE = {
    "module": (
        str,
        'the path of a module; `operator add` for a kind of operator outside modules; "" for '
        "operators that can't be kept in float",
    ),
    "sqnr_db": (float, "SQNR with only this module quantized"),
    "measured": (bool, "false: estimated from gradients"),
    "share": (float, "share of the noise"),
    "saved_bytes": (Count, "bytes that quantizing its weights saves"),
    "chosen": bool,
    "in_float?": (
        _IN_FLOAT,
        "the package with only this module in float, if `--variants` built it",
    ),
}
_METHOD = {
    "floor_db": (float, None, "the floor to reach; null if none is set"),
    "calls": (Count, "number of examples in a run"),
    "sqnr_db": _DECIBELS,
    "float_sqnr_db": (float, "SQNR with all operators switched back to float"),
    "kept": ([str], "modules and operators that the proposal keeps in float"),
    "reached": (bool, "whether the runs reach the floor"),
    "complete": (bool, "whether the budget sufficed"),
    "expected_db": (float, "the SQNR that the runs predict for the proposal"),
    "modules": ([_MODULE], "the noisiest first"),
    "operators": [
        {
            "operator": str,
            "count": Count,
            "sqnr_db": (float, "SQNR with only this kind of operator quantized"),
            "saved_bytes": Count,
        }
    ],
    "base_ms?": (float, None, "time of a call on this machine, fully quantized"),
    "metric?": (str, "the requested metric"),
    "metric_value?": (float, "the metric's value, fully quantized"),
    "runs": Count,
    "gradients": Count,
    "one_by_one": (Count, "runs needed to measure each module alone"),
    "overrides": (
        {str: {str: Any}},
        "overrides for `quantize` in the config: `modules` and `operators`, by name",
    ),
}
_KEPT = {str: [str]}
_METRIC = {
    "name": (str, "the metric's name in `validate.metrics`"),
    "value": (float, "the value for the fully quantized package"),
    "verdict": (str, "the verdict on the metric's limits; empty without limits"),
    "sentence": str,
    "kept": (
        _KEPT,
        "modules and operators that the proposal keeps in float, by method",
    ),
    "reached": (bool, "whether a package passes, with or without the proposal"),
    "complete": (bool, "whether the budget sufficed"),
    "builds": Count,
    "one_by_one": (Count, "builds needed to try each module alone"),
    "tried": [
        {
            "kept": _KEPT,
            "bytes": (int, "additional bytes of the files that a device loads"),
            "value": float,
            "verdict": str,
        }
    ],
}
_BUILD = {
    "bytes": (int, "additional bytes of the files that a device loads"),
    "ms": (_SPREAD, None, "as in `in_float`"),
    "sqnr_db": (
        float,
        None,
        "SQNR of the package against the float program; null if it can't run here",
    ),
    "metric?": (float, "change of the requested metric's value"),
    "verdict?": (str, "the verdict on the metric's limits"),
}
_GROUP = {"modules": ([str], "modules on the other backend"), **_BUILD}
_KIND = {
    "operator": (str, "an operator with a portable kernel, such as `aten.add.Tensor`"),
    "count": (Count, "the number of calls that delegates otherwise run"),
    **_BUILD,
}
_AGAINST = {
    "backend": (str, "`portable`, or the name of a partitioner"),
    "metric": (str, "the requested metric; empty without one"),
    "methods": {
        str: {
            "base_ms": (
                float,
                None,
                "time of a call of the unchanged package on this machine",
            ),
            "sqnr_db": (float, None, "SQNR of the unchanged package"),
            "calls": (Count, "number of examples for an SQNR"),
            "metric_value": (
                float,
                None,
                "the metric's value for the unchanged package",
            ),
            "groups": ([_GROUP], "one build each, in order"),
            "operators": ([_KIND], "one build each, the most frequent kinds first"),
            "untried": ([str], "delegated kinds of operators that no build left out"),
            "complete": (bool, "whether every group with an effect was split"),
            "builds": (Count, "builds of groups"),
            "one_by_one": (Count, "builds needed to try each module alone"),
            "proposed": ([str], "modules that are better on the other backend"),
            "settings": (
                {str: Any},
                "the config's settings of the method that apply the proposal",
            ),
        }
    },
}
_PACKAGE = {
    "format": Literal[1],
    "package": str,
    "files": ({FileName: Digest}, "the measured files"),
    "bytes": (Size, "size of the files that a device loads"),
    "verified": (
        {
            "bytes": Size,
            "methods": {str: {"sqnr_db": _DECIBELS, "calls": Count}},
            "attempts": (
                Count,
                "number of attempts to find a proposal that reaches the floor",
            ),
        },
        None,
        "the package built with the proposal; null without one",
    ),
    "methods": {str: _METHOD},
    "metric?": (_METRIC, "results of the search with `--metric`"),
    "against?": (_AGAINST, "results of `--against`; `methods` is then empty"),
}
SENSITIVITY = {
    "format": Literal[1],
    "packages": [_PACKAGE],
    "written": ([str], "the config files that `--write` changed"),
}
