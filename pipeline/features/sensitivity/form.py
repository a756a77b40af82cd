"""The outline of what `doit sensitivity` prints with `--json` (`moments.Command.record`), of whose
packages `sensitivity.json` has one."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, Size

_DECIBELS = (float, "SQNR of the worst output on the worst example, at most 120")
_SPREAD = {"median": float, "low": float, "high": float}
_IN_FLOAT = {
    "bytes": (int, "more of the files that a device loads"),
    "metric?": (float, "more of the value on the metric that was asked for"),
    "ms": (
        _SPREAD,
        None,
        "that a call takes longer on this machine: median and quartiles over rounds in which "
        "packages took turns; null where it can't run them",
    ),
}
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
    "in_float?": (
        _IN_FLOAT,
        "of a package with it alone in float, where `--variants` built one",
    ),
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
    "base_ms?": (float, None, "of a call on this machine, all quantized"),
    "metric?": (str, "the metric that was asked for"),
    "metric_value?": (float, "on it, all quantized"),
    "runs": Count,
    "gradients": Count,
    "one_by_one": (Count, "runs that measuring each module alone would take"),
    "overrides": (
        {str: {str: Any}},
        "of `quantize` in the config: `modules` and `operators`, by name",
    ),
}
_KEPT = {str: [str]}
_METRIC = {
    "name": (str, "of `validate.metrics`"),
    "value": (float, "of the package, all quantized"),
    "verdict": (str, "on its limits; empty without any"),
    "sentence": str,
    "kept": (_KEPT, "in float by the proposal: modules and operators by method"),
    "reached": (bool, "whether a package passes, with the proposal or as it is"),
    "complete": (bool, "whether the budget sufficed"),
    "builds": Count,
    "one_by_one": (Count, "builds that each module alone would take"),
    "tried": [
        {
            "kept": _KEPT,
            "bytes": (int, "more of the files that a device loads"),
            "value": float,
            "verdict": str,
        }
    ],
}
_BUILD = {
    "bytes": (int, "more of the files that a device loads"),
    "ms": (_SPREAD, None, "as of `in_float`"),
    "sqnr_db": (
        float,
        None,
        "of the package against the float program; null where it can't run here",
    ),
    "metric?": (float, "more of the value on the metric that was asked for"),
    "verdict?": (str, "on the limits of that metric"),
}
_GROUP = {"modules": ([str], "on the other backend"), **_BUILD}
_KIND = {
    "operator": (str, "such as `aten.add.Tensor`, which portable kernels have"),
    "count": (Count, "that delegates have otherwise"),
    **_BUILD,
}
_AGAINST = {
    "backend": (str, "`portable`, or the name of a partitioner"),
    "metric": (str, "that was asked for; empty without one"),
    "methods": {
        str: {
            "base_ms": (float, None, "of a call on this machine, as it is"),
            "sqnr_db": (float, None, "of the package as it is"),
            "calls": (Count, "examples of an SQNR"),
            "metric_value": (float, None, "of the package as it is"),
            "groups": ([_GROUP], "a build each, in their order"),
            "operators": ([_KIND], "a build each, the most frequent kinds first"),
            "untried": ([str], "delegated kinds of operators that no build leaves"),
            "complete": (bool, "whether no group with an effect was left whole"),
            "builds": (Count, "of groups"),
            "one_by_one": (Count, "builds that each module alone would take"),
            "proposed": ([str], "modules that are better on the other backend"),
            "settings": (
                {str: Any},
                "of the method in the config, that leave it those",
            ),
        }
    },
}
_PACKAGE = {
    "format": Literal[1],
    "package": str,
    "files": ({FileName: Digest}, "that were measured"),
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
    "metric?": (_METRIC, "the search by `--metric`"),
    "against?": (_AGAINST, "of `--against`; `methods` is empty then"),
}
SENSITIVITY = {
    "format": Literal[1],
    "packages": [_PACKAGE],
    "written": ([str], "the config files that `--write` changed"),
}
