"""The seconds that validating a package may take.

Which calls fit into the budget depends on the machine. A validation that was cut short is therefore
never kept in the store, and lists the calls that it left out.
"""

from __future__ import annotations

import math
import time

from pipeline.store.errors import PipelineError

OF_LOCATING = 0.25  # the share reserved for locating failures


class OutOfTimeError(PipelineError):
    """A search ended because its time was used up."""

    def __str__(self) -> str:
        return "validate.budget was exhausted"  # an interpreter of torch.fx adds to its arguments


class Budget:
    """A number of seconds, counted from now."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._started = time.monotonic()

    def share(self, share: float) -> Budget:
        """Return the first part of this budget, with the same starting time."""
        part = Budget(self._seconds * share)
        part._started = self._started
        return part

    @property
    def left(self) -> float:
        return max(0.0, self._started + self._seconds - time.monotonic())

    @property
    def spent(self) -> bool:
        return self.left == 0

    def check(self) -> None:
        """Raise OutOfTimeError if the time is used up."""
        if self.spent:
            raise OutOfTimeError
