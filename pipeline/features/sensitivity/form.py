"""The outline of the output of `doit sensitivity --json` (`moments.Command.record`).

`sensitivity.json` holds the part for one package.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, Size

_DECIBELS = (
    float,
    "the SQNR of the worst output on the worst example, in dB, at most 120",
)
_SPREAD = {
    "median": float,
    "low": (float, "the lower quartile"),
    "high": (float, "the upper quartile"),
}
_IN_FLOAT = {
    "bytes": (int, "the change in the size of the files that a device loads"),
    "metric?": (float, "the change in the value of the requested metric"),
    "ms": (
        _SPREAD,
        None,
        "the change in the time of a call on this machine, in ms, over rounds in which packages "
        "took turns; null if this machine can't run them",
    ),
}
_MODULE = {
    "module": (
        str,
        'the path of a module; `operator add` for a kind of operator outside modules; "" for '
        "operators that can't be kept in float",
    ),
    "sqnr_db": (float, "the SQNR with only this module quantized"),
    "measured": (
        bool,
        "whether the SQNR was measured; if false, it was estimated from gradients",
    ),
    "share": (float, "the module's share of the noise"),
    "saved_bytes": (Count, "the bytes that quantizing the module's weights saves"),
    "chosen": (bool, "whether the proposal keeps the module in float"),
    "in_float?": (
        _IN_FLOAT,
        "the package with only this module in float, compared with the fully quantized package; "
        "only with `--variants`",
    ),
}
_METHOD = {
    "floor_db": (
        float,
        None,
        "the SQNR that the method has to reach; null if none is set",
    ),
    "calls": (Count, "the number of examples in a run"),
    "sqnr_db": _DECIBELS,
    "float_sqnr_db": (float, "the SQNR with all operators switched back to float"),
    "kept": ([str], "the modules and operators that the proposal keeps in float"),
    "reached": (
        bool,
        "whether the search reached `floor_db`; without a floor, or if the method reaches it "
        "anyway, whether the search found the modules that cause half of the noise",
    ),
    "complete": (bool, "whether the budget sufficed for the search"),
    "expected_db": (
        float,
        "the SQNR that the proposal should reach, according to the runs",
    ),
    "modules": ([_MODULE], "the modules, starting with the noisiest"),
    "operators": [
        {
            "operator": (str, "the kind of operator"),
            "count": (Count, "the number of its calls"),
            "sqnr_db": (float, "the SQNR with only this kind of operator quantized"),
            "saved_bytes": (Count, "the bytes that quantizing its weights saves"),
        }
    ],
    "base_ms?": (
        float,
        None,
        "the time of a call of the fully quantized method on this machine, in ms",
    ),
    "metric?": (str, "the requested metric"),
    "metric_value?": (float, "the metric's value for the fully quantized method"),
    "runs": (Count, "the number of runs"),
    "gradients": (Count, "the number of gradients that were computed"),
    "one_by_one": (
        Count,
        "the number of runs that measuring each module alone would take",
    ),
    "overrides": (
        {str: {str: Any}},
        "the overrides for `quantize` in the config that apply the proposal: `modules` and "
        "`operators`, by name",
    ),
}
_KEPT = {str: [str]}
_METRIC = {
    "name": (str, "the metric's name in `validate.metrics`"),
    "value": (float, "the value for the fully quantized package"),
    "verdict": (str, "the verdict on the metric's limits; empty without limits"),
    "sentence": (str, "the value and its limits, in a sentence"),
    "kept": (
        _KEPT,
        "the modules and operators that the proposal keeps in float, by method",
    ),
    "reached": (
        bool,
        "whether the fully quantized package, or one that was built in the search, meets the "
        "limits",
    ),
    "complete": (bool, "whether the budget sufficed for the search"),
    "builds": (Count, "the number of packages that were built"),
    "one_by_one": (
        Count,
        "the number of builds that trying each module alone would take",
    ),
    "tried": (
        [
            {
                "kept": (_KEPT, "the modules and operators kept in float, by method"),
                "bytes": (
                    int,
                    "the change in the size of the files that a device loads",
                ),
                "value": (float, "the metric's value for the package"),
                "verdict": (str, "the verdict on the metric's limits"),
            }
        ],
        "the packages that were built",
    ),
}
_BUILD = {
    "bytes": (int, "the change in the size of the files that a device loads"),
    "ms": (_SPREAD, None, "the change in the time of a call, as in `in_float`"),
    "sqnr_db": (
        float,
        None,
        "the SQNR of the package against the float program; null if this machine can't run it",
    ),
    "metric?": (float, "the change in the value of the requested metric"),
    "verdict?": (str, "the verdict on the metric's limits"),
}
_GROUP = {"modules": ([str], "the modules on the other backend"), **_BUILD}
_KIND = {
    "operator": (str, "an operator with a portable kernel, such as `aten.add.Tensor`"),
    "count": (
        Count,
        "the number of its calls that delegates run in the unchanged package",
    ),
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
                "the time of a call of the unchanged package on this machine, in ms",
            ),
            "sqnr_db": (float, None, "the SQNR of the unchanged package"),
            "calls": (Count, "the number of examples from which an SQNR is computed"),
            "metric_value": (
                float,
                None,
                "the metric's value for the unchanged package",
            ),
            "groups": (
                [_GROUP],
                "the groups of modules that were moved to the other backend, one build each, in "
                "order",
            ),
            "operators": (
                [_KIND],
                "the kinds of operators that were left to portable kernels, one build each, "
                "starting with the most frequent",
            ),
            "untried": (
                [str],
                "the delegated kinds of operators that no build left to portable kernels",
            ),
            "complete": (bool, "whether every group with an effect was split"),
            "builds": (Count, "the number of builds of groups"),
            "one_by_one": (
                Count,
                "the number of builds that trying each module alone would take",
            ),
            "proposed": ([str], "the modules that are better on the other backend"),
            "settings": (
                {str: Any},
                "the settings of the method in the config that apply the proposal",
            ),
        }
    },
}
_PACKAGE = {
    "format": Literal[1],
    "package": str,
    "files": ({FileName: Digest}, "the digests of the measured files"),
    "bytes": (Size, "the size of the files that a device loads"),
    "verified": (
        {
            "bytes": (Size, "the size of the files that a device loads"),
            "methods": {
                str: {"sqnr_db": _DECIBELS, "calls": (Count, "the number of examples")}
            },
            "attempts": (
                Count,
                "the number of attempts to find a proposal that reaches `floor_db`",
            ),
        },
        None,
        "the measurements of the package that was built with the proposal, which says what to "
        "keep in float; null without a proposal",
    ),
    "methods": {str: _METHOD},
    "metric?": (_METRIC, "the results of the search with `--metric`"),
    "against?": (
        _AGAINST,
        "the results of `--against`; the `methods` of the package are then empty",
    ),
}
SENSITIVITY = {
    "format": Literal[1],
    "packages": [_PACKAGE],
    "written": ([str], "the config files that `--write` changed"),
}
