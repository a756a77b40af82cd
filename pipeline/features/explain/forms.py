"""The forms of the `--json` output of `doit plan`, `doit explain` and `doit why`.

A command refers to its form in `moments.Command.record`.
"""

from __future__ import annotations

from typing import Literal

from pipeline.store.forms import Count, Seconds

_KIND = Literal["export", "quantize", "compile", "link", "validate"]
_STATE = Literal["up-to-date", "hit", "stale", "waiting"]
_ACTION = {
    "kind": _KIND,
    "model": (
        str,
        None,
        "the model of an export, with its parameters; null for other kinds",
    ),
    "package": (str, None, "null for an export, since packages share exports"),
    "methods": ([str], "the methods of a compile or quantize action"),
    "state": (
        _STATE,
        "hit: not built here, but in the store; waiting: depends on an action that is not done",
    ),
    "reason": str,
}
PLAN = {
    "format": Literal[1],
    "actions": ([_ACTION], "in run order, including actions that are up to date"),
    "mistakes": (
        [{"package": str, "mistake": str}],
        "mistakes in configs; packages with mistakes have no actions",
    ),
    "warnings": [str],
    "notes": ([str], "notes on the backends and libraries of pending actions"),
}
EXPLANATION = {
    "format": Literal[1],
    "actions": [
        {
            **_ACTION,
            "since": (
                str,
                'the earlier action that `changes` compares with; "" if there is none',
            ),
            "changes": ([str], "changed files, config keys, tensors and libraries"),
            "remarks": [str],
            "seconds": (
                Seconds,
                None,
                "the time that it took, here or elsewhere; null if it never ran",
            ),
            "stages": {str: (Seconds, "seconds by stage")},
        }
    ],
    "last_run": (
        {
            "seconds": Seconds,
            "workers": Count,
            "idle": (Seconds, "idle time, summed over workers"),
            "idle_while_ready": (
                Seconds,
                "the part of the idle time in which an action was ready",
            ),
            "chain": [{"action": str, "seconds": Seconds, "waited": Seconds}],
        },
        None,
        "the bottleneck of the last run; null if packages were named",
    ),
}
DEPENDENTS = {
    "format": Literal[1],
    "thing": (str, "the argument from the command line"),
    "roads": [
        {
            "package": str,
            "methods": ([str], None, "the methods that depend on it; null for all"),
            "road": Literal[
                "config",
                "model",
                "weight",
                "exporter input",
                "config option",
                "example inputs",
                "recorded outputs",
                "baseline",
                "pass",
                "operator library",
                "backend",
                "quantizer",
                "toolchain",
                "backend version",
                "family",
            ],
            "through": (
                str,
                "the reference to it: a config key, a pass, a file, or a package of the family",
            ),
            "lower": (
                bool,
                "whether a change lowers methods again; if false, it only validates them again",
            ),
        }
    ],
    "not_known": (
        {str: str},
        "by package, why the list may be incomplete: its model is not exported here, or its "
        "config has mistakes",
    ),
}
