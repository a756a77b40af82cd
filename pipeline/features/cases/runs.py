"""Calls a method on the kinds of cases that its config or this package chooses."""

from __future__ import annotations

from collections.abc import Sequence

from torch.export import ExportedProgram

from pipeline.features.cases.maker import CaseMaker
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name
from pipeline.validate.method import MethodValidator

# How often a method with state is called on one case: the second call reads the state of the first.
_STEPS_OF_A_CASE = 2
# Measured on two linears with a tanh: over 40 runs with newly rounded values, the SQNR is usually
# 129 dB but 27 dB at worst, so a few runs say nothing.
_SELDOM = (
    "with dynamically quantized ranges, the source rarely rounds large values differently, but "
    "then by a lot; set `cases` in the config to include them"
)


def run_cases(validator: MethodValidator, cases: Sequence[str]) -> bool:
    """Call a method on cases of these kinds, except any that don't suit its program."""
    kinds = _choose_kinds(validator, cases)
    settings = validator.settings
    result = validator.result
    maker = CaseMaker(
        validator.source,
        settings.inputs,
        settings.seed,
        validator.examples,
        validator.limits,
        validator.budget,
        validator.shapes,
    )
    # Cases are made lazily, since making them runs the source, and time may run out.
    for case in maker.make(kinds):
        if validator.leaves_out(case.origin):
            continue
        if validator.source.state:
            steps = min(settings.steps, _STEPS_OF_A_CASE)
            validator.run_in_sequence([case] * steps)
        else:
            validator.call_alone(case)
    result.skipped += maker.skipped
    result.left_out += maker.left_out
    return True


def _choose_kinds(validator: MethodValidator, cases: Sequence[str]) -> list[str]:
    """Return the kinds that suit the program, or those that the config lists."""
    kinds = list(cases)
    if "large" not in kinds or _lists_cases(validator):
        return kinds
    if validator.held_to.derived and _finds_ranges(validator.program):
        kinds.remove("large")
        validator.result.skipped.append(("large", _SELDOM))
    return kinds


def _lists_cases(validator: MethodValidator) -> bool:
    """Return whether the config lists the cases to try."""
    settings = validator.settings
    if settings.cases is not None:
        return True
    method_config = settings.methods.get(validator.result.method)
    return method_config is not None and method_config.cases is not None


def _finds_ranges(program: ExportedProgram) -> bool:
    """Return whether a program quantizes dynamically, by ranges that it finds at run time."""
    return any(
        base_name(node).startswith("choose_qparams") for node in iter_nodes(program)
    )
