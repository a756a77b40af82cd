"""The seconds that validating a package may take.

Which calls are made within it depends on the machine. So what was cut short is never kept in the
store, and says what it left out.
"""

from __future__ import annotations

import time

OF_LOCATING = 0.25  # the share that is kept for finding out where methods fail


class Budget:
    """Seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    @property
    def spent(self) -> bool:
        return self.left == 0
