"""Judging many damages, and the table of what came of them. Imports no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OUTCOMES = (
    "caught", "equivalent", "tolerated", "survived", "misplaced", "unclear", "crashed", "hung",
)  # fmt: skip
Job = tuple[str, str, int]


class Judges:
    """A process that judges (mutations/judge.py)."""

    def __init__(self) -> None:
        self._process = _started()
        names = json.loads(self._answer())
        self.samples: list[str] = names["samples"]
        self.damages: list[str] = names["damages"]

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def judge(self, sample: str, damage: str, seed: int) -> dict[str, Any] | None:
        """A verdict as JSON; None where the sample has nothing to damage so."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([sample, damage, seed]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def jobs(self, seeds: Iterable[int]) -> Iterator[Job]:
        """Every damage of every sample, in a fixed order."""
        for seed in seeds:
            for sample in self.samples:
                for damage in self.damages:
                    yield sample, damage, seed

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the judge ended with {self._process.wait(60)}")
        return answer


def _started() -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.mutations.judge"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},  # it forks
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("MUTATIONS_VERBOSE") else subprocess.DEVNULL,
        text=True,
    )


def table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Damages down, outcomes across; then the score: the share of what can be seen beyond the
    limits that was caught."""
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
