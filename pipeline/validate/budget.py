"""The seconds that validating a package may take.

Which calls are made within it depends on the machine. So what was cut short is never kept in the
store, and says what it left out.
"""

from __future__ import annotations

import math
import time

from pipeline.store.errors import PipelineError

OF_LOCATING = 0.25  # the share that is kept for finding out where methods fail


class OutOfTimeError(PipelineError):
    """A search was ended, since its time was spent."""

    def __str__(self) -> str:
        return "validate.budget was exhausted"  # an interpreter of torch.fx adds to its arguments


class Budget:
    """Seconds from now on."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._started = time.monotonic()

    def share(self, share: float) -> Budget:
        """Return the first part of it, which began when it did."""
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
        """Raises OutOfTimeError where it is spent."""
        if self.spent:
            raise OutOfTimeError
