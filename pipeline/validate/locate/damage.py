"""Locates what differs in a package that is not what its build gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.devices.interpreter.execute import read_results
from pipeline.devices.interpreter.load import PackageData, read_package
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.store.errors import PipelineError, first_line
from pipeline.validate.locate.case import FailureCase, Spot, plans, run_until
from pipeline.validate.locate.plan_diff import diff_method
from pipeline.validate.metrics import OutputError, compare


def locate_damage(case: FailureCase) -> Iterator[Culprit]:
    """Yield the differences from the build, in the order of the instructions.

    There are none where there is no build to compare with, or where the package is the same.
    """
    try:
        built = case.evidence.built()
        if built is None or case.method not in plans(case.data):
            return
        wanted = read_package(built)
        if case.method not in plans(wanted):
            return
        found = diff_method(case.data, wanted, case.method, case.lowered.program)
    except PipelineError as error:
        case.note(f"what its build gives is not to be had ({first_line(error)})")
        return
    for each in found:
        if each.index is None:
            sentence = f"the package's method '{case.method}' {each.what}"
            yield case.culprit(Spot(), each.kind, sentence)
            continue
        spot = case.find(each.index, wanted)
        if spot.place is None and each.constant:
            spot = replace(spot, place=find_reader(case, each.constant))
        sentence = f"first departs: {case.describe(spot)}: the package {each.what}"
        yield case.culprit(spot, each.kind, sentence, _measure_error(case, each.index, wanted))


def find_reader(case: FailureCase, constant: str) -> int | None:
    """Find the place of the first operator that a constant of the program goes into."""
    program = case.lowered.program
    specs = program.graph_signature.input_specs
    reads = {spec.arg.name for spec in specs if spec.target == constant}
    for place, node in enumerate(iter_nodes(program)):
        if node.op == "call_function" and reads & {i.name for i in node.all_input_nodes}:
            if not base_name(node).startswith("dequantize"):
                return place
            reads.add(node.name)
    return None


def _measure_error(case: FailureCase, index: int, wanted: PackageData) -> OutputError | None:
    """Measure how far the values of an instruction are from those that the build's gives."""
    if not case.may_run:
        return None
    try:
        mine, right = (run_until(data, case.sequence, index) for data in (case.data, wanted))
        if mine is None or right is None:
            return None
        pairs = zip(read_results(mine, index), read_results(right, index), strict=False)
        errors = [compare(actual, expected) for actual, expected in pairs]
    except Exception as error:  # a damaged package may not run at all
        case.note(f"its damaged part does not run ({first_line(error)})")
        return None
    return max(errors, key=lambda error: error.max_abs, default=None)
