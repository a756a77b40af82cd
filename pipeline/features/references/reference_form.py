"""Describes in one line how a reference's outputs differ in form from the exported program's.

They can differ in structure, in the inputs changed in place, or in the order of outputs. No
operator or line is to blame for such a difference, so nothing is located for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.features.references.recordings import Outputs, RecordedCall
from pipeline.program.eager import AFTER_CALL, name_changed_input
from pipeline.program.signature import flatten, signature
from pipeline.store.errors import listed
from pipeline.validate.metrics import compare

_MOST_NAMED = 4
# Relative error: another output that is this near must be the one that was meant.
_SAME = 1e-4


def describe_structure(actual: Outputs, recorded: Outputs) -> str:
    """Return how the names of both sides' outputs differ.

    Names are like `output[0]` and `output['logits']`, and include inputs changed in place.

    Args:
        actual: the outputs of the exported program, by name.
        recorded: the outputs of the reference.
    """
    missing = [name for name in actual if name not in recorded]
    extra = [name for name in recorded if name not in actual]
    if changed := [name for name in extra if name.startswith("input ")]:
        names = listed((name.removesuffix(AFTER_CALL) for name in changed), _MOST_NAMED)
        return (
            f"the reference changes {names} in place, and the exported program does not; clone "
            "it in the reference if nothing reads it after the call"
        )
    if not extra:
        which = " (None in the exported program)" if _are_none(missing, actual) else ""
        return f"the reference does not return {listed(missing, _MOST_NAMED)}{which}"
    if not missing:
        which = " (None in the reference)" if _are_none(extra, recorded) else ""
        return (
            f"the exported program does not return {listed(extra, _MOST_NAMED)}{which}"
        )
    names = listed(missing, _MOST_NAMED)
    other_names = listed(extra, _MOST_NAMED)
    return f"the exported program returns {names}, the reference {other_names}"


def _are_none(names: Sequence[str], outputs: Outputs) -> bool:
    return all(outputs[name] is None for name in names)


def describe_order(wrong: Sequence[str], actual: Outputs, recorded: Outputs) -> str:
    """Return which outputs of the reference match other outputs of the exported program.

    It is "" unless each wrong output matches another one.

    Args:
        wrong: the names of outputs that differ.
        actual, recorded: as in `describe_structure`; both have the same names.
    """
    sentences = []
    for name in wrong:
        match = _find_match(recorded[name], name, actual)
        if match is None:
            return ""
        sentences.append(f"{name} of the reference is {match} of the export")
    return listed(sentences, _MOST_NAMED)


def describe_unchanged(
    wrong: Sequence[str], call: RecordedCall, program: ExportedProgram
) -> str:
    """Return the inputs that the program changes in place, and the reference doesn't.

    It is "" unless each wrong output is such an input.
    """
    names = [name_changed_input(argument.name) for argument in signature(program)]
    inputs = dict(zip(names, flatten(program, call.inputs), strict=True))
    for name in wrong:
        if name not in inputs or compare(call.outputs[name], inputs[name]).max_abs:
            return ""
    if not wrong:
        return ""
    unchanged = listed((name.removesuffix(AFTER_CALL) for name in wrong), _MOST_NAMED)
    return f"the exported program changes {unchanged} in place, the reference does not"


def _find_match(value: Any, name: str, actual: Outputs) -> str | None:
    """Return the name of another output with the same values as this tensor, or None."""
    if not isinstance(value, Tensor):
        return None
    for other_name, candidate in actual.items():
        if other_name == name or not isinstance(candidate, Tensor):
            continue
        error = compare(candidate, value)
        if (
            error.mismatch is None
            and error.relative is not None
            and error.relative <= _SAME
        ):
            return other_name
    return None
