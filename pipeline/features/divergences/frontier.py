"""Finds where two runs diverge: the first operators whose inputs agree but whose results differ.

A value agrees if the other run has it, too, wherever it was computed there, since the runs may have
different operators in a different order. The search starts at the outputs that differ and follows
only values that don't agree.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

from pipeline.features.divergences.sketches import Sketch, distance
from pipeline.features.divergences.trace import Leaf, Trace, TraceEvent, is_value

# In units in the last place: the tolerances at which values are compared, one after the other.
TOLERANCES = (0.0, 4.0, 64.0, 1024.0, 16384.0, 262144.0)
_LARGEST = 0.25  # greatest relative distance at which values can agree
_EPS = 2.0**-23  # of float32
ROUNDING = 64 * _EPS  # by which the outputs of equivalent operators may differ
_JUMP = 10.0  # a diverging result's error is at least this many times its inputs'


class ValueIndex:
    """The values of a run, indexed for looking up the values of another run."""

    def __init__(self, trace: Trace[Any]) -> None:
        self._groups: dict[tuple[Any, ...], list[tuple[float, int, Sketch]]] = {}
        self._trace = trace
        for number, content in enumerate(trace.values):
            if content is not None:
                entry = (content.projections[0], number, content)
                self._groups.setdefault(_group(trace, number, content), []).append(
                    entry
                )
        for entries in self._groups.values():
            entries.sort(key=lambda entry: entry[:2])

    def nearest(self, trace: Trace[Any], value: int, most: float = math.inf) -> float:
        """Return the least distance of a value of `trace` from any value of this run.

        Args:
            most: distances above this limit are irrelevant.
        """
        content = trace.values[value]
        if content is None:
            return 0.0
        # Many values share a shape and dtype; few have a first projection this close.
        entries = self._groups.get(_group(trace, value, content), [])
        reach = math.inf
        if math.isfinite(
            most
        ):  # one projection differs by at most a few times the distance
            reach = 8 * most * content.norm
        center = content.projections[0]
        first = bisect_left(entries, center - reach, key=_projection)
        last = bisect_right(entries, center + reach, key=_projection)
        distances = (distance(content, sketch) for _, _, sketch in entries[first:last])
        return min(distances, default=math.inf)


def _projection(entry: tuple[float, int, Sketch]) -> float:
    return entry[0]


def _group(trace: Trace[Any], value: int, content: Sketch) -> tuple[Any, ...]:
    """Return the key that values must share to be compared.

    Many tensors are uniform, such as all zeros, and can only be the same value if the same operator
    made them.
    """
    return (*content.group, trace.origins[value])


# The part of one run that diverges from the other: operators whose inputs agree but whose results
# don't, in order; values that no operator wrote and that don't agree; and all values that don't
# agree and lead to an output through values that don't agree.
Side = tuple[list[TraceEvent[Any]], list[Leaf[Any]], set[int]]


class TraceComparison:
    """Two runs to compare."""

    def __init__(self, program: Trace[Any], reference: Trace[Any]) -> None:
        self.program = program
        self.reference = reference
        self._indexes = (ValueIndex(program), ValueIndex(reference))
        self._nearest: dict[tuple[bool, int], float] = {}
        self.pairs = pair_leaves(program, reference)
        to_program = {
            reference_value: program_value
            for program_value, reference_value in self.pairs
        }
        self._partners = (dict(self.pairs), to_program)

    def differing_outputs(self, tolerance: float = 0.0) -> list[str]:
        """Return the labels of outputs that differ by more than a tolerance."""
        labels = []
        for label, output in self.program.outputs.items():
            if label not in self.reference.outputs:
                if label.startswith("output "):
                    labels.append(label)
            elif not self._same(output, self.reference.outputs[label], tolerance):
                labels.append(label)
        return labels

    def _same(self, output: Any, expected: Any, tolerance: float) -> bool:
        if is_value(output) and is_value(expected):
            actual_sketch = self.program.values[int(output)]
            expected_sketch = self.reference.values[int(expected)]
            if actual_sketch is None or expected_sketch is None:
                return True
            return distance(actual_sketch, expected_sketch) <= _relative(
                tolerance, actual_sketch
            )
        if is_value(output) or is_value(expected):
            return False
        if type(output) is not type(expected):
            return False
        # Both may return NaN, which is not equal to itself.
        is_nan = output != output
        return bool(is_nan or output == expected)

    def find(self, tolerance: float) -> tuple[Side, Side]:
        """Return the parts of the program and of the reference that diverge, at a tolerance."""
        labels = self.differing_outputs(tolerance)
        program = self._find_side(True, labels, tolerance)
        return program, self._find_side(False, labels, tolerance)

    def _find_side(self, is_program: bool, labels: list[str], tolerance: float) -> Side:
        trace = self.program if is_program else self.reference
        pending = []
        for label in labels:
            output = trace.outputs.get(label)
            if is_value(output):
                pending.append(int(trace.outputs[label]))
        diverging: set[int] = set()
        events: dict[int, TraceEvent[Any]] = {}
        leaves: dict[int, Leaf[Any]] = {}
        while pending:
            value = pending.pop()
            if value in diverging or self.agrees(is_program, value, tolerance):
                continue
            diverging.add(value)
            event = trace.producers.get(value)
            if event is None:
                leaves[value] = trace.leaves[value]
                continue
            differing = [
                v for v in event.reads if not self.agrees(is_program, v, tolerance)
            ]
            if all(self._is_unused(is_program, v) for v in differing):
                events[event.place] = event
            else:
                pending += differing
        ordered_events = [events[place] for place in sorted(events)]
        return ordered_events, [leaves[value] for value in sorted(leaves)], diverging

    def _is_unused(self, is_program: bool, value: int) -> bool:
        """Return whether a value is a weight that the other run doesn't read.

        The runs then diverge at the operator that reads it.
        """
        trace = self.program if is_program else self.reference
        leaf = trace.leaves.get(value)
        is_weight = leaf is not None and leaf.kind in ("parameter", "buffer")
        return is_weight and value not in self._partners[not is_program]

    def agrees(self, is_program: bool, value: int, tolerance: float) -> bool:
        """Return whether the other run has an equal value, within a tolerance."""
        trace = self.program if is_program else self.reference
        content = trace.values[value]
        if content is None:
            return True
        return self.error(is_program, value) <= _relative(tolerance, content)

    def error(self, is_program: bool, value: int) -> float:
        """Return the distance of a value from the nearest value of the other run."""
        key = (is_program, value)
        if key not in self._nearest:
            self._nearest[key] = self._find_error(is_program, value)
        return self._nearest[key]

    def _find_error(self, is_program: bool, value: int) -> float:
        if is_program:
            trace, other_trace = self.program, self.reference
        else:
            trace, other_trace = self.reference, self.program
        partner = self._partners[not is_program].get(value)
        if partner is None:
            return self._indexes[is_program].nearest(trace, value)
        return _distance(trace.values[value], other_trace.values[partner])

    def output_error(self, labels: list[str]) -> float:
        """Return the greatest error of the outputs; infinite if they can't be compared."""
        errors = []
        for label in labels:
            output = self.program.outputs[label]
            expected = self.reference.outputs.get(label)
            if not is_value(output) or not is_value(expected):
                return math.inf
            actual_sketch = self.program.values[output]
            expected_sketch = self.reference.values[expected]  # type: ignore[index]
            errors.append(_distance(actual_sketch, expected_sketch))
        return max(errors, default=math.inf)


def pair_leaves(program: Trace[Any], reference: Trace[Any]) -> list[tuple[int, int]]:
    """Return the pairs of values of the same name with which both runs begin, such as a parameter.

    A wrapper may have added a prefix to one run's names.
    """
    values_by_name = {}
    # In reverse, so that the first of several leaves with the same name wins.
    for value, leaf in reversed(reference.leaves.items()):
        if leaf.name:
            values_by_name[leaf.name] = value
    pairs = []
    for value, leaf in program.leaves.items():
        partner = _find_partner(leaf.name, values_by_name)
        if partner is not None:
            pairs.append((value, partner))
    return pairs


def _find_partner(name: str, values_by_name: dict[str, int]) -> int | None:
    if not name:
        return None
    if name in values_by_name:
        return values_by_name[name]
    alike = []
    for other_name, value in values_by_name.items():
        if _is_suffix(name, other_name):
            alike.append(value)
    # Several names with the same ending are ambiguous.
    return alike[0] if len(alike) == 1 else None


def _is_suffix(name: str, other_name: str) -> bool:
    shorter, longer = sorted((name, other_name), key=len)
    return longer.endswith(f".{shorter}")


def _distance(sketch: Sketch | None, other_sketch: Sketch | None) -> float:
    if sketch is None or other_sketch is None:
        return 0.0
    return distance(sketch, other_sketch)


def _relative(tolerance: float, content: Sketch) -> float:
    return min(tolerance * content.eps, _LARGEST)


def find_tolerance(comparison: TraceComparison) -> float | None:
    """Return the tolerance at which two runs diverge, or None if their outputs are equal.

    Accumulated rounding exceeds any tolerance somewhere. A divergence differs from it by a jump: a
    result whose error is much greater than the tolerance that its inputs meet.
    """
    first: float | None = None
    for tolerance in TOLERANCES:
        if not comparison.differing_outputs(tolerance):
            break
        # At a tolerance of 0 any rounding would be a jump.
        if _first_error(comparison, tolerance) > _JUMP * max(tolerance, 4.0) * _EPS:
            return tolerance
        first = tolerance if first is None else first
    return first


def _first_error(comparison: TraceComparison, tolerance: float) -> float:
    """Return the error of the first diverging operators, relative to their results.

    It is infinite if the other run has no similar value.
    """
    errors = []
    sides = comparison.find(tolerance)
    for is_program, (events, leaves, diverging) in zip(
        (True, False), sides, strict=True
    ):
        if leaves:
            return math.inf
        for event in events[:1]:
            results = [value for value in event.writes if value in diverging]
            errors += [comparison.error(is_program, value) for value in results]
    return max(errors, default=math.inf)
