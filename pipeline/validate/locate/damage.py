"""A package that is not what its build gives: what differs, and which operator shows it first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.compile.inspect.delegation import nodes_of
from pipeline.devices.interpreter.execute import given_by, steps, value_of
from pipeline.devices.interpreter.load import Data, Method, read_package
from pipeline.program.operators import operator_of
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.store.errors import PipelineError
from pipeline.validate.locate.case import Case, first_line
from pipeline.validate.locate.plan_diff import Difference, differences, plans
from pipeline.validate.metrics import OutputError, compare


def damaged(case: Case) -> Iterator[Culprit]:
    """The differences, in the order of the instructions; none where there is no build to compare
    with, or the package is the same."""
    try:
        built = case.evidence.built()
        if built is None or case.method not in plans(case.data):
            return
        wanted = read_package(built)
        if case.method not in plans(wanted):
            return
        found = differences(case.data, wanted, case.method, case.made.program)
    except PipelineError as error:
        case.note(f"what its build gives is not to be had ({first_line(error)})")
        return
    for each in found:
        yield _culprit(case, each, wanted)


def _culprit(case: Case, found: Difference, wanted: Data) -> Culprit:
    if found.index is None:
        sentence = f"the package's method '{case.method}' {found.what}"
        return case.culprit(None, found.kind, sentence)
    place, backend, number = case.place_of(found.index, wanted)
    if place is None and found.constant:
        place = reader_of(case, found.constant)
    error = _error_at(case, found.index, wanted)
    where = case.told(place, backend, number)
    sentence = f"first departs: {where}: the package {found.what}"
    return case.culprit(place, found.kind, sentence, error, backend, number)


def reader_of(case: Case, constant: str) -> int | None:
    """The place of the first operator that a constant of the program goes into."""
    program = case.made.program
    specs = program.graph_signature.input_specs
    reads = {spec.arg.name for spec in specs if spec.target == constant}
    for place, node in enumerate(nodes_of(program)):
        if node.op != "call_function" or not reads & {i.name for i in node.all_input_nodes}:
            continue
        if not operator_of(node).startswith("dequantize"):
            return place
        reads.add(node.name)
    return None


def _error_at(case: Case, index: int, wanted: Data) -> OutputError | None:
    """By how much the values of an instruction differ from those that the build's gives."""
    if not case.may_run or not case.calls:
        return None
    try:
        last = max(n for n, (method, _) in enumerate(case.sequence) if method == case.method)
        both = [case.replayed(last, data)[case.method] for data in (case.data, wanted)]
        values = [_values_at(each, index, case.calls[-1]) for each in both]
        errors = [compare(a, e) for a, e in zip(*values, strict=False)]
    except Exception as error:  # a damaged package may not run at all
        case.note(f"its damaged part does not run ({first_line(error)})")
        return None
    return max(errors, key=lambda error: error.max_abs, default=None)


def _values_at(loaded: Method, index: int, inputs: list[Any]) -> list[Any]:
    for number in steps(loaded, inputs):
        if number == index:
            return [value_of(loaded, place) for place in given_by(loaded, index)]
    return []
