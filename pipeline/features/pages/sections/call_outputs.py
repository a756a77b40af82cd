"""The outputs of every call in a report, each with its errors and whether it failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.features.pages.elsewhere import is_elsewhere
from pipeline.report.elements import Json


class Output(NamedTuple):
    """An output of a call.

    `suffix` names the output if the call has several, `where` is the call's input set, and `ok` is
    whether no failure of the method on this machine concerns the output.
    """

    method: Json
    run: Json
    errors: Json
    suffix: str
    where: str
    ok: bool


def outputs(report: Json) -> Iterator[Output]:
    """Yield the outputs of every call."""
    for method in report["methods"]:
        for run in method["runs"]:
            yield from _outputs_of_run(method, run)


def _outputs_of_run(method: Json, run: Json) -> Iterator[Output]:
    where = run["origin"]
    if run.get("step"):
        where += f" (call {run['step']} from {run['sequence']})"
    count = len(run["outputs"])
    names = method.get("outputs") or [f"output[{number}]" for number in range(count)]
    for output, errors in zip(names, run["outputs"], strict=False):
        suffix = ""
        if count > 1:
            suffix = f", {output}"
        failed = _has_failed(method, (where, run["origin"]), output)
        yield Output(method, run, errors, suffix, where, not failed)


def _has_failed(method: Json, input_sets: Sequence[str], output: str) -> bool:
    """Return whether a method failed here, at this output and on one of these input sets."""
    for failure in method["failures"]:
        if is_elsewhere(method, failure):
            continue
        if failure["inputs"] in input_sets and failure["output"] in ("", output):
            return True
    return False
