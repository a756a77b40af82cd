"""The programs that a method of a package is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.export import ExportedProgram

from pipeline.moments import call_all
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.default_limits import RUNS

# Far from the steps of a sequence, and not a power of two: seeds whose low bits agree draw very
# similar numbers (the 24 bits of a float32 are the low ones of mt19937).
_OTHER_SEEDS = 1_000_003

Call = tuple[str, InputSet, bool, int]  # the arguments of `Lane.postpone`


class Lane:
    """Programs of methods that share state, called in sequence from the initial state.

    Attributes:
        name: `source`, `quantized` or `rounded`.
        sources: the programs, by method.
    """

    def __init__(self, name: str, sources: Mapping[str, Source]) -> None:
        self.name = name
        self.sources = sources
        self.has_state = any(source.state for source in sources.values())
        self._postponed: list[Call] = []

    def postpone(
        self, method: str, inputs: InputSet, as_it_lies: bool = False, seed: int = 0
    ) -> None:
        """Postpone a call until its outputs are needed, or its effect on those of a later call.

        Args:
            seed: for values that are rounded at random.
        """
        if not self.has_state:
            self._postponed.clear()
        self._postponed.append((method, inputs, as_it_lies, seed))

    def run(self, *call: Any) -> list[Any]:
        """Make a call (`postpone`), and return its outputs."""
        self.postpone(*call)
        return self.run_postponed()

    def run_postponed(self) -> list[Any]:
        """Make the postponed calls, and return the outputs of the last one."""
        self._catch_up()
        return self._make(*self._postponed.pop())

    def _catch_up(self) -> None:
        """Make the postponed calls before the last one, for the state that they leave."""
        while len(self._postponed) > 1:
            with suppress(Exception):  # it may fail, and still change the state
                self._make(*self._postponed.pop(0))

    def _make(
        self, method: str, inputs: InputSet, as_it_lies: bool, seed: int
    ) -> list[Any]:
        source = self.sources[method]
        source.reseed(seed)
        return source.run(inputs, as_it_lies)

    def reset(self) -> None:
        """Restore the initial state."""
        self._postponed.clear()
        for source in self.sources.values():
            source.reset()


OpenLane = Callable[[str, Mapping[str, Source]], Lane]


class References:
    """The source program of a method, and the programs that its limits are derived from.

    Each is in the state that the programs of its lane leave.

    Attributes:
        source: the method's own program.
    """

    def __init__(
        self,
        method: str,
        source: Lane,
        quantized: Lane | None = None,
        rounded: Sequence[Lane] = (),
    ) -> None:
        """Combine lanes, of which each has the method's program.

        Args:
            rounded: the lowered program with every value rounded again; empty if the config sets
                the limits and nothing was quantized.
        """
        self._method = method
        self._source = source
        self._quantized = quantized
        self._rounded = rounded
        self.source = source.sources[method]

    @classmethod
    def make(
        cls,
        programs: Mapping[str, ExportedProgram],
        quantized: Mapping[str, ExportedProgram],
        rounding: bool,
        open_lane: OpenLane = Lane,
    ) -> dict[str, References]:
        """Make the references of each method; methods share the buffers that any of them changes.

        All methods are called in all lanes, so that each lane has the state that they leave there.

        Args:
            rounding: whether the rounding of any method is measured.
        """
        lowered = {
            name: quantized.get(name, program) for name, program in programs.items()
        }
        source_lane = open_lane("source", Source.with_common_state(programs))
        quantized_lane = None
        if quantized.keys() & programs.keys():
            sources = Source.with_common_state(lowered)
            quantized_lane = open_lane("quantized", sources)
        rounded_lanes = []
        for _ in range(RUNS if rounding else 0):
            for rounded_sources in call_all("round_sources", lowered):
                rounded_lanes.append(open_lane("rounded", rounded_sources))
        return {
            name: cls(name, source_lane, quantized_lane, rounded_lanes)
            for name in programs
        }

    def reset(self) -> None:
        """Restore the initial state."""
        for lane in (self._source, self._quantized, *self._rounded):
            if lane is not None:
                lane.reset()

    def run_source(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Return the outputs of the source. Raises whatever an operator raises."""
        return self._source.run(self._method, inputs, as_it_lies)

    def run_quantized(
        self, inputs: InputSet, as_it_lies: bool = False
    ) -> list[Any] | None:
        """Return the outputs among quantized programs, or None if there are none or it fails.

        A method that isn't quantized runs its own program, on state that the others write.
        """
        if self._quantized is None:
            return None
        self._quantized.postpone(self._method, inputs, as_it_lies)
        return _try(self._quantized)

    def run_rounded(
        self, inputs: InputSet, as_it_lies: bool = False, step: int = 0
    ) -> Iterator[list[Any]]:
        """Return the outputs of runs with rounded values, without runs that fail.

        Each run is made when it is asked for, or before a later one if it changes the state.
        """
        for number, lane in enumerate(self._rounded):
            lane.postpone(self._method, inputs, as_it_lies, number + RUNS * step)
        return filter(None, map(_try, self._rounded))

    def run_rounded_again(
        self, inputs: InputSet, as_it_lies: bool, runs: int
    ) -> list[list[Any]]:
        """Return the outputs of further runs with other rounding, without runs that fail."""
        all_outputs: list[list[Any]] = []
        for number in range(1, runs + 1):
            all_outputs += self.run_rounded(inputs, as_it_lies, _OTHER_SEEDS * number)
        return all_outputs


def _try(lane: Lane) -> list[Any] | None:
    try:
        return lane.run_postponed()
    except Exception:  # rounded values may make an operator raise anything
        return None
