"""The outlines of what `doit plan`, `doit explain` and `doit why` print with `--json`
(`moments.Command.record`)."""

from __future__ import annotations

from typing import Literal

from pipeline.store.forms import Count, Seconds

_KIND = Literal["export", "quantize", "compile", "link", "validate"]
_STATE = Literal["up-to-date", "hit", "stale", "waiting"]
_ACTION = {
    "kind": _KIND,
    "model": (str, None, "of an export, with its parameters; null for other kinds"),
    "package": (str, None, "null for an export, which packages share"),
    "methods": ([str], "those of a compile or quantize action"),
    "state": (
        _STATE,
        "hit: not here, but in the store; waiting: for an action before it",
    ),
    "reason": str,
}
PLAN = {
    "format": Literal[1],
    "actions": ([_ACTION], "in the order of a run, those that are up to date too"),
    "mistakes": (
        [{"package": str, "mistake": str}],
        "in configs; their packages have no actions",
    ),
    "warnings": [str],
    "notes": ([str], "on backends and libraries of actions that are to be done"),
}
EXPLANATION = {
    "format": Literal[1],
    "actions": [
        {
            **_ACTION,
            "since": (
                str,
                'which earlier action `changes` compares it with; "" where nothing is compared',
            ),
            "changes": ([str], "to the file, config key, tensor or library"),
            "remarks": [str],
            "seconds": (
                Seconds,
                None,
                "that it took, here or elsewhere; null where it was not done",
            ),
            "stages": {str: (Seconds, "by stage")},
        }
    ],
    "last_run": (
        {
            "seconds": Seconds,
            "workers": Count,
            "idle": (Seconds, "of all workers together"),
            "idle_while_ready": (Seconds, "of it, while an action was ready"),
            "chain": [{"action": str, "seconds": Seconds, "waited": Seconds}],
        },
        None,
        "what bounded the last run, where nothing is named",
    ),
}
DEPENDENTS = {
    "format": Literal[1],
    "thing": (str, "as it was named"),
    "roads": [
        {
            "package": str,
            "methods": ([str], None, "those that hang on it; null for all"),
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
                "what names it: a key of the config, a pass, a file, a package of the family",
            ),
            "lower": (
                bool,
                "whether a change lowers methods anew; else it is only validated",
            ),
        }
    ],
    "not_known": (
        {str: str},
        "by package, why there may be more: its model is not exported here, or it has mistakes",
    ),
}
