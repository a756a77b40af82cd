"""Judges whether the comparisons of a method could have failed, by following its outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.features.unjudged.branches import RunBodies
from pipeline.features.unjudged.movement import OutputMovement
from pipeline.features.unjudged.standstill import StandstillJudge
from pipeline.program.inputs import InputSet
from pipeline.validate.budget import Budget
from pipeline.validate.call_limits import DerivedLimits


class MovementJudge:
    """Follows how far the outputs of a program move over the calls in which a package is compared.

    Attributes:
        movement: the movement of each output, by its position.

    Args:
        program: the program that the package is compared with: the source, or its quantized
            program; None for the float program of a quantized method, whose `judge` isn't called.
    """

    def __init__(self, program: ExportedProgram | None) -> None:
        self.movement: dict[int, OutputMovement] = {}
        self._bodies = RunBodies(program) if program else None

    def add(
        self,
        expected: Sequence[Any],
        limits: Sequence[Limits],
        inputs: InputSet,
        case: str = "",
    ) -> None:
        """Add the outputs of the source, or of the quantized program, in one call."""
        outputs = zip(expected, limits, strict=True)
        for place, (value, output_limits) in enumerate(outputs):
            movement = self.movement.setdefault(place, OutputMovement())
            movement.add(value, output_limits, inputs, case)

    def would_notice(
        self, expected: Sequence[Any], limits: Sequence[DerivedLimits]
    ) -> bool:
        """Return whether a call would show, by these limits, that a further output moves."""
        for place, output in self.movement.items():
            if output.would_notice(expected[place], limits[place].capped):
                return True
        return False

    def release(self) -> None:
        """Drop the values that are no longer needed, once all calls are made."""
        for output in self.movement.values():
            output.release()

    def judge(
        self,
        names: Sequence[str],
        state: Sequence[str],
        examples: Sequence[InputSet],
        unjudged: Collection[int],
        is_random: bool,
        is_observed: bool,
        budget: Budget,
    ) -> list[dict[str, Any]]:
        """Return the movement of each output. The arguments are attributes of `StandstillJudge`."""
        if self._bodies is None:
            return []
        self._bodies.release()
        if not names:
            return self._judge_state(self._bodies, state)
        if not self.movement:
            return []
        judge = StandstillJudge(
            self._bodies.program,
            names,
            state,
            examples,
            self.movement,
            unjudged,
            is_random,
            is_observed,
            budget,
        )
        return judge.judge(self._bodies.explain(len(names), state))

    def _judge_state(
        self, bodies: RunBodies, state: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the record of a method without outputs, if no call ran some of its bodies."""
        records = []
        for reason in bodies.explain(1, state).values():
            record = OutputMovement().to_json("state")
            records.append({**record, "judged": False, "reason": reason})
        return records

    def find_indifferent_outputs(
        self,
        program: ExportedProgram,
        names: Sequence[str],
        state: Sequence[str],
        examples: Sequence[InputSet],
    ) -> list[str]:
        """Return the outputs whose limits could not fail (`StandstillJudge`)."""
        judge = StandstillJudge(program, names, state, examples, self.movement)
        return judge.find_indifferent_outputs()
