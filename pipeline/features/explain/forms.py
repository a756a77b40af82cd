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
    "package": (
        str,
        None,
        "the package; null for an export, since packages share exports",
    ),
    "methods": (
        [str],
        "the methods of a compile or quantize action; empty for other kinds",
    ),
    "state": (
        _STATE,
        "hit: the result is in the store, but not in the workspace; waiting: the action "
        "depends on an action that is not done",
    ),
    "reason": (str, "why the action is in this state"),
}
PLAN = {
    "format": Literal[1],
    "actions": (
        [_ACTION],
        "the actions in the order of a run, including those that are up to date",
    ),
    "mistakes": (
        [{"package": str, "mistake": str}],
        "the mistakes in configs; packages with mistakes have no actions",
    ),
    "warnings": ([str], "the warnings that a run would print"),
    "notes": ([str], "notes on the backends and libraries that pending actions use"),
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
            "changes": ([str], "the changed files, config keys, tensors and libraries"),
            "remarks": ([str], "other remarks on the action"),
            "seconds": (
                Seconds,
                None,
                "the time that the action took, here or elsewhere; null if it never ran",
            ),
            "stages": ({str: Seconds}, "the seconds of each stage of the action"),
        }
    ],
    "last_run": (
        {
            "seconds": (Seconds, "the duration of the run"),
            "workers": (Count, "the number of workers"),
            "idle": (Seconds, "the idle time in seconds, summed over workers"),
            "idle_while_ready": (
                Seconds,
                "the part of the idle time in which an action was ready to run",
            ),
            "chain": (
                [
                    {
                        "action": str,
                        "seconds": (Seconds, "the duration of the action"),
                        "waited": (
                            Seconds,
                            "how long the action was ready before it began",
                        ),
                    }
                ],
                "the longest chain of actions, each of which uses the result of the one before",
            ),
        },
        None,
        "what limited the speed of the last run; null if the command names packages",
    ),
}
DEPENDENTS = {
    "format": Literal[1],
    "thing": (
        str,
        "the file, tensor, backend, library or variable that the command names",
    ),
    "roads": (
        [
            {
                "package": str,
                "methods": (
                    [str],
                    None,
                    "the methods that depend on the thing; null for all",
                ),
                "road": (
                    Literal[
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
                    "the kind of dependency",
                ),
                "through": (
                    str,
                    "what refers to the thing: a config key, a pass, a file, or a package of a "
                    "family",
                ),
                "lower": (
                    bool,
                    "whether a change to the thing lowers the methods again; if false, it only "
                    "validates them again",
                ),
            }
        ],
        "the ways in which packages depend on the thing, each for one package",
    ),
    "not_known": (
        {str: str},
        "why the list may be incomplete, by package: the package's model is not exported here, or "
        "its config has mistakes",
    ),
}
