"""Judges many damages and prints the table of verdicts. Imports no torch."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any

OUTCOMES = (
    "caught", "equivalent", "tolerated", "survived", "misplaced", "unclear", "crashed", "hung",
)  # fmt: skip
Job = tuple[str, str, int]


class Judges:
    """A single-threaded process that judges damages (judge.py), since it forks."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare)
        self.samples, self.damages = self._pool.submit(_list_names).result()

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def judge(self, sample: str, damage: str, seed: int) -> dict[str, Any] | None:
        """Return the outcome of a damage (judge.judge); None if it doesn't apply to the sample."""
        return self._pool.submit(_judge, sample, damage, seed).result()

    def jobs(self, seeds: Iterable[int]) -> Iterator[Job]:
        """Yield every damage of every sample, in a fixed order."""
        return product(self.samples, self.damages, seeds)


def _prepare() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2) if not os.environ.get("MUTATIONS_VERBOSE") else ():
        os.dup2(silence, stream)  # output of lowering isn't a verdict
    from tests.support.quick_torch import make_torch_quick

    make_torch_quick()


def _list_names() -> tuple[list[str], list[str]]:
    from .registry import DAMAGES, SAMPLES

    return [*SAMPLES], [*DAMAGES]


def _judge(*job: Any) -> dict[str, Any] | None:
    from .judge import judge

    return judge(*job)


def table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of damages by outcome, followed by the score.

    The score is the share of caught damages among those with effects beyond the limits.
    """
    counts = {name: Counter[str]() for name in dict.fromkeys(v["damage"] for v in verdicts)}
    for verdict in verdicts:
        counts[verdict["damage"]][verdict["outcome"]] += 1
    width = max((len(name) for name in counts), default=0)
    lines = [" " * width + "".join(f"{name:>12}" for name in OUTCOMES)]
    for name, found in counts.items():
        cells = "".join(f"{found[outcome] or '.':>12}" for outcome in OUTCOMES)
        lines.append(f"{name:<{width}}{cells}")
    total = sum(counts.values(), Counter[str]())
    lines.append(f"{'all':<{width}}" + "".join(f"{total[o] or '.':>12}" for o in OUTCOMES))
    visible = sum(total.values()) - total["equivalent"] - total["tolerated"]
    score = total["caught"] / visible if visible else 1.0
    lines.append(f"caught {total['caught']} of {visible} that can be seen: {score:.1%}")
    return "\n".join(lines)
