"""Judges which outputs of a method carried no information, and explains why.

An output that never moves by more than its limits, is NaN throughout or has no elements is not
judged, unless the program alone determines it: then its value was compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.features.unjudged.dependence import (
    Dependence,
    find_dependences,
    output_values,
)
from pipeline.features.unjudged.movement import OutputMovement, have_same_leaves
from pipeline.features.unjudged.unmoved_node import describe_standstill
from pipeline.program.eager import functionalized
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import fill_random, is_floating
from pipeline.program.signature import flatten, in_dim_order, signature
from pipeline.store.errors import plural
from pipeline.validate.budget import Budget
from pipeline.validate.conclusions import ACCEPT, RETURNS_NOTHING
from pipeline.validate.limits import check_limits
from pipeline.validate.metrics import compare
from pipeline.validate.node_values import NodeValues

_REDRAWN = 6  # input sets for the source alone, if all calls had the same inputs
_SEED = 0x7ED5EED  # a seed unlikely to be used for examples; torch takes 32 bits of it
_REMEDY = f"add examples that change it; {ACCEPT}"
_REMEDY_STATE = (
    f"raise `validate.steps` if it changes only after more calls, or {_REMEDY}"
)
_REMEDY_WITHIN = (
    f"add examples that change it, or set a limit below its movement; {ACCEPT}"
)
_REMEDY_NAN = f"add examples on which the source returns numbers; {ACCEPT}"
_REMEDY_EMPTY = f"add examples on which it has elements; {ACCEPT}"
CONSTANT = (
    "no output depends on any input: they are constants in the exported program, perhaps frozen "
    f"by tracing; {ACCEPT}"
)


class StandstillJudge:
    """Judges whether the comparisons of a method's outputs could have failed.

    Attributes:
        program: the program that the package was compared with: the source, or its quantized
            program.
        names: the names of the outputs, in the order of `Source.outputs`.
        state: the buffers that the method changes.
        examples: input sets from whose integers others may be drawn.
        movement: the movement of each output, by its position.
        unjudged: the positions of outputs whose limits are meaningless, which is reported already.
        is_random: whether the method samples, so that its outputs were held to no limits.
        is_observed: whether methods that share its state were called after it.
        budget: the time for finding where an output stops depending on the inputs.
    """

    def __init__(
        self,
        program: ExportedProgram,
        names: Sequence[str],
        state: Sequence[str],
        examples: Sequence[InputSet],
        movement: Mapping[int, OutputMovement],
        unjudged: Collection[int] = (),
        is_random: bool = False,
        is_observed: bool = False,
        budget: Budget | None = None,
        root: Path | None = None,
    ) -> None:
        self.program = program
        self.names = names
        self.state = state
        self.examples = examples
        self.movement = movement
        self.unjudged = unjudged
        self.is_random = is_random
        self.is_observed = is_observed
        self.budget = budget or Budget()
        self.root = root
        self._tried: dict[InputSet, list[list[Any]]] = {}
        self._elsewhere: dict[tuple[InputSet, int | None], list[Any] | None] = {}

    def judge(self, unrun: Mapping[int, str]) -> list[dict[str, Any]]:
        """Return the movement of each output, with the reason if it is not judged.

        Args:
            unrun: by the position of an output, why the control flow that it is computed with
                leaves it unjudged (`branches.RunBodies`).
        """
        records = []
        for place, output in sorted(self.movement.items()):
            record = output.to_json(self.names[place])
            reason = self._judge_output(place, output, record) or unrun.get(place)
            if reason:
                _leave_unjudged(record, reason)
            records.append(record)
        if all(record.get("fixed") == "nothing" for record in records):
            for record in records:
                if reason := self._judge_constants():
                    _leave_unjudged(record, reason)
        return records

    def find_indifferent_outputs(self) -> list[str]:
        """Return the outputs that stayed within the config's limits, even on different inputs.

        Only outputs that depend on the inputs count. The first value of such an output, in place of
        any later one of its shape, was within the limits.
        """
        still = []
        for place, output in self.movement.items():
            if not output.noticed and output.other_inputs is not None:
                still.append(place)
        if not still:
            return []
        return [self.names[n] for n in still if self._dependences[n] == "values"]

    def _judge_constants(self) -> str:
        """Return why a method is not judged if its outputs are all constants, or ""."""
        if self.state:
            return "" if self.is_observed else RETURNS_NOTHING
        return CONSTANT if self._takes_inputs else ""

    def _judge_output(
        self, place: int, output: OutputMovement, record: dict[str, Any]
    ) -> str:
        """Return why an output is not judged, or "".

        If it doesn't depend on the values of inputs, record what determines it.
        """
        name = self.names[place]
        calls = plural(output.calls, "call")
        if not output.calls:  # only calls on large inputs
            return ""
        if not output.values:
            where = self._describe_place(place, output)
            return f"{name} has no elements in any of {calls}{where}; {_REMEDY_EMPTY}"
        if output.nans == output.values:
            where = self._describe_place(place, output)
            return f"{name} is NaN in every value of {calls}{where}; {_REMEDY_NAN}"
        if output.example_values and output.example_nans == output.example_values:
            return f"{name} is NaN in every value on the examples; {_REMEDY_NAN}"
        # An output that was reported already needs no second reason.
        if output.noticed or self.is_random or place in self.unjudged:
            return ""
        if self._dependences[place] != "values":
            record["fixed"] = self._dependences[place]
            return ""
        if output.other_inputs is None and self._moves_elsewhere(place, output):
            record["redrawn"] = True
            return ""
        return self._explain(name, place, output)

    def _explain(self, name: str, place: int, output: OutputMovement) -> str:
        on = "in the one call"
        if output.calls > 1:
            on = f"in all {plural(output.calls, 'call')}"
        if output.other_inputs is None and (redrawn := self._count_redrawn(output)):
            on += f", and in {redrawn} of its source on other inputs"
        where = self._describe_place(place, output)
        if output.moves_if_large:
            where += "; on large inputs it moves"
        if not output.largest:
            whatever = "" if output.moves_if_large else ", whatever the inputs"
            remedy = _REMEDY_STATE if self.state else _REMEDY
            return f"{name} is the same {on}{whatever}{where}; {remedy}"
        return (
            f"{name} moves by at most {output.largest:.3g} {on}, within its limits, so no value "
            f"could fail{where}; {_REMEDY_WITHIN}"
        )

    @property
    def _takes_inputs(self) -> bool:
        values = [argument.value for argument in signature(self.program)]
        return any(isinstance(value, Tensor | torch.SymInt) for value in values)

    @cached_property
    def _dependences(self) -> list[Dependence]:
        return find_dependences(self.program, len(self.names), self.state)

    @cached_property
    def _source(self) -> NodeValues:
        return NodeValues(functionalized(self.program))

    def _moves_elsewhere(self, place: int, output: OutputMovement) -> bool:
        """Return whether the source gives another value on other inputs of the same sizes."""
        inputs = next(iter(output.firsts.values())).inputs
        expected = self._run_elsewhere(inputs, None)
        if expected is None:
            return False
        for number in range(_REDRAWN):
            outputs = self._run_elsewhere(inputs, number)
            if outputs is not None:
                error = compare(expected[place], outputs[place])
                if check_limits(error, expected[place], outputs[place], output.limits):
                    return True
        return False

    def _run_elsewhere(self, inputs: InputSet, number: int | None) -> list[Any] | None:
        """Return the source's outputs on redrawn inputs, or on the inputs themselves for None.

        All outputs share these calls. Returns None if the source refuses the inputs, or if earlier
        ones have the same values, which happens if the examples have a single integer.
        """
        if (inputs, number) not in self._elsewhere:
            self._elsewhere[inputs, number] = None
            leaves: list[Any] = flatten(self.program, inputs)
            if number is not None:
                leaves = self._redraw(leaves, number)
            tried = self._tried.setdefault(inputs, [])
            if not any(have_same_leaves(leaves, others) for others in tried):
                tried.append(leaves)
                with suppress(Exception):  # for an index that is too large, say
                    self._elsewhere[inputs, number] = self._run(leaves)
        return self._elsewhere[inputs, number]

    def _count_redrawn(self, output: OutputMovement) -> int:
        """Return how many calls on redrawn inputs the source accepted."""
        inputs = next(iter(output.firsts.values())).inputs
        calls = [self._elsewhere.get((inputs, number)) for number in range(_REDRAWN)]
        return sum(outputs is not None for outputs in calls)

    def _run(self, leaves: Sequence[Any]) -> list[Any]:
        self._source.budget = Budget()  # the verdict needs these few calls
        self._source.reset()
        return self._source.call(leaves, ())

    def _redraw(self, leaves: Sequence[Any], number: int) -> list[Any]:
        """Return random inputs of the same sizes; later ones add integers not in the examples."""
        generator = torch.Generator().manual_seed(_SEED + number)
        example_leaves = [flatten(self.program, example) for example in self.examples]
        if not example_leaves:
            example_leaves = [list(leaves)]
        drawn: list[Any] = []
        for index, argument in enumerate(signature(self.program)):
            value = leaves[index]
            if isinstance(value, Tensor):
                example_values = [values[index] for values in example_leaves]
                if number >= _REDRAWN // 2:
                    example_values += _widen(example_values)
                redrawn = fill_random(
                    argument.value, value.shape, example_values, generator
                )
                value = in_dim_order(redrawn.to(value.dtype), argument)
            drawn.append(value)
        return drawn

    def _describe_place(self, place: int, output: OutputMovement) -> str:
        """Return the operator at which an output stops depending on the inputs, as a phrase.

        Returns "" if it isn't found.
        """
        if not output.firsts:
            return ""
        self._source.budget = self.budget
        # An operator may raise anything: then the place is unknown.
        with suppress(Exception):
            values = output_values(self._source.program)
            if place >= len(values) or not isinstance(values[place], Node):
                return ""
            pair = self._pick_inputs(output)
            where = describe_standstill(self._source, values[place], *pair, self.root)
            return f"; it stops depending on them at {where}" if where else ""
        return ""

    def _pick_inputs(self, output: OutputMovement) -> tuple[list[Any], list[Any]]:
        """Return two inputs of the same size that differ as much as possible."""
        if (pair := output.other_inputs) is not None:
            first, later_inputs = pair
            return flatten(self.program, first.inputs), flatten(
                self.program, later_inputs
            )
        leaves = flatten(self.program, next(iter(output.firsts.values())).inputs)
        return leaves, self._redraw(leaves, 0)


def _leave_unjudged(record: dict[str, Any], reason: str) -> None:
    record["judged"] = False
    record["reason"] = reason


def _widen(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return integers just outside the range of the integers in the examples."""
    ends: list[int] = []
    for tensor in tensors:
        if (
            not tensor.numel()
            or is_floating(tensor.dtype)
            or tensor.dtype == torch.bool
        ):
            continue
        ends += [int(tensor.min()), int(tensor.max())]
    if not ends:
        return []
    return [torch.tensor([max(min(ends) - 1, 0), max(ends) + 1])]
