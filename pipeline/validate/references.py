"""The programs that a method of a package is compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram

from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.default_limits import RUNS
from pipeline.validate.rounding import RoundedSource

# Far from the steps of a sequence, and no power of two: seeds whose low bits agree draw numbers
# that are much alike (the 24 bits of a float32 are the low ones of mt19937).
_OTHER_SEEDS = 1_000_003


class References:
    """The source program of a method and what its limits are derived from, in the same state.

    Attributes:
        source: the method's own program.
        quantized: the program that quantization made of it, if it did.
        rounded: what was lowered, with every value rounded anew; none where the config sets limits
            and nothing was quantized.
    """

    def __init__(
        self,
        source: Source,
        quantized: Source | None = None,
        rounded: Sequence[RoundedSource] = (),
    ) -> None:
        self.source = source
        self.quantized = quantized
        self.rounded = rounded

    @classmethod
    def make(
        cls,
        programs: Mapping[str, ExportedProgram],
        quantized: Mapping[str, ExportedProgram],
        rounding: Collection[str],
    ) -> dict[str, References]:
        """Make those of methods, by name, which share the buffers that any of them changes.

        Args:
            rounding: the methods whose rounding is measured.
        """
        lowered = {
            name: quantized.get(name, program) for name, program in programs.items()
        }
        sources = Source.with_common_state(programs)
        quantized_sources = {}
        if quantized.keys() & programs.keys():
            quantized_sources = Source.with_common_state(lowered)
        runs = range(RUNS if rounding else 0)
        rounded = [RoundedSource.with_common_state(lowered) for _ in runs]
        return {
            name: cls(
                sources[name],
                quantized_sources[name] if name in quantized else None,
                [run[name] for run in rounded] if name in rounding else [],
            )
            for name in programs
        }

    def reset(self) -> None:
        """Restore the initial state."""
        for source in (self.source, self.quantized, *self.rounded):
            if source is not None:
                source.reset()

    def run_quantized(
        self, inputs: InputSet, as_it_lies: bool = False
    ) -> list[Any] | None:
        """Return what the quantized program gives; None without one, or where it fails."""
        if self.quantized is None:
            return None
        return _run(self.quantized, inputs, as_it_lies)

    def run_rounded(
        self, inputs: InputSet, as_it_lies: bool = False, step: int = 0
    ) -> list[list[Any]]:
        """Return what runs with rounded values give, of those that end well."""
        all_outputs = []
        for number, source in enumerate(self.rounded):
            source.reseed(number + RUNS * step)
            if (outputs := _run(source, inputs, as_it_lies)) is not None:
                all_outputs.append(outputs)
        return all_outputs

    def run_rounded_again(
        self, inputs: InputSet, as_it_lies: bool, runs: int
    ) -> list[list[Any]]:
        """Return what more runs with values rounded in other ways give, of those that end well."""
        all_outputs = []
        for number in range(1, runs + 1):
            all_outputs += self.run_rounded(inputs, as_it_lies, _OTHER_SEEDS * number)
        return all_outputs


def _run(source: Source, inputs: InputSet, as_it_lies: bool) -> list[Any] | None:
    try:
        return source.run(inputs, as_it_lies)
    except Exception:  # whatever an operator raises for values that rounding made
        return None
