"""A model of a large build: how long the workers of a cluster need for many methods.

It compares orders in which actions start. Durations are drawn from the `timeline.json` of a run.

    python -m benchmarks.schedule build/timeline.json
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

KINDS = ("compile", "link", "validate")
SIZES = (2, 3, 5, 10, 20)  # methods per package


@dataclass(frozen=True)
class Package:
    """The seconds of a package's compile actions, of its link and of its validation."""

    compiles: Sequence[float]
    link: float
    validate: float

    @property
    def seconds(self) -> float:
        return sum(self.compiles) + self.link + self.validate


Order = Callable[[float, int], float]  # of an action's seconds and number: the lowest goes first
ORDERS: Mapping[str, Order] = {
    "as they come": lambda seconds, number: number,
    "longest first": lambda seconds, number: -seconds,
}


def durations(timeline: Path) -> dict[str, list[float]]:
    """Return the seconds of a run's actions by kind, without the imports of their workers."""
    events = json.loads(timeline.read_bytes())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    imports = [event for event in spans if event["name"] == "import" and event["cat"] == "stage"]

    def net(action: Mapping[str, float]) -> float:
        end = action["ts"] + action["dur"]
        own = [e for e in imports if e["tid"] == action["tid"] and action["ts"] <= e["ts"] < end]
        return (action["dur"] - sum(each["dur"] for each in own)) / 1e6

    return {kind: [net(each) for each in spans if each["cat"] == kind] for kind in KINDS}


def make_packages(
    found: Mapping[str, Sequence[float]], methods: int, spread: float, seed: int = 0
) -> list[Package]:
    """Make packages with `methods` methods in total.

    All times of a package are scaled by a log-normal factor with the standard deviation `spread`.
    """
    chance, made, left = random.Random(seed), [], methods
    while left:
        size = min(chance.choice(SIZES), left)
        left -= size
        factor = chance.lognormvariate(0, spread)

        def draw(kind: str, factor: float = factor) -> float:
            return factor * chance.choice(found[kind])

        own = [draw("compile") for _ in range(size)]
        made.append(Package(own, draw("link"), draw("validate")))
    return made


def in_waves(
    packages: Sequence[Package], workers: int, order: Order, each: float = 0.0, start: float = 5.0
) -> float:
    """Return the seconds until all packages are validated, if a build proceeds in waves.

    As in a build, all methods are compiled before any package is linked, and all packages are
    linked before any is validated.

    Args:
        each: additional seconds per action.
        start: seconds until workers have finished their imports.
    """
    waves = [
        [seconds for package in packages for seconds in package.compiles],
        [package.link for package in packages],
        [package.validate for package in packages],
    ]
    now = start
    for wave in waves:
        queue = sorted(range(len(wave)), key=lambda number: order(wave[number], number))
        free = [now] * workers
        for number in queue:
            heapq.heappush(free, heapq.heappop(free) + wave[number] + each)
        now = max(free)
    return now


def without_waves(
    packages: Sequence[Package], workers: int, order: Order, each: float = 0.0, start: float = 5.0
) -> float:
    """Return the seconds if each package is linked and validated as soon as possible.

    Among the ready actions, the first to start is the one with the longest path to its package's
    end.
    """
    number = count()
    ready: list[tuple[float, int, float, Iterator[float], list[int]]] = []

    def add(seconds: float, left: float, rest: Iterator[float], waiting: list[int]) -> None:
        place = next(number)
        heapq.heappush(ready, (order(seconds + left, place), place, seconds, rest, waiting))

    for package in packages:
        rest, waiting = iter((package.link, package.validate)), [len(package.compiles)]
        for seconds in package.compiles:
            add(seconds, package.link + package.validate, rest, waiting)
    running: list[tuple[float, int, Iterator[float], list[int]]] = []
    now = start
    while ready or running:
        while ready and len(running) < workers:
            _, place, seconds, rest, waiting = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds + each, place, rest, waiting))
        now, _, rest, waiting = heapq.heappop(running)
        waiting[0] -= 1
        if waiting[0] <= 0 and (seconds := next(rest, -1.0)) >= 0:
            add(seconds, 0.0, rest, waiting)
    return now


SCHEDULES = {"in waves": in_waves, "without waves": without_waves}


def report(found: Mapping[str, Sequence[float]], methods: int, workers: int) -> Iterator[str]:
    """Yield the lines of the model for each spread, schedule and order.

    Each gives the seconds, and the share of the workers' time that actions use.
    """
    for spread in (0.0, 1.0, 1.5):
        packages = make_packages(found, methods, spread)
        total = sum(package.seconds for package in packages)
        path = max(max(each.compiles) + each.link + each.validate for each in packages)
        yield (
            f"{methods:,} methods, {len(packages):,} packages, spread {spread:g}: "
            f"{total / 3600:.1f} h of work; {total / workers:.0f} s on {workers} workers that "
            f"never wait, and no less than {path:.0f} s for the longest package"
        )
        for schedule, function in SCHEDULES.items():
            for name, order in ORDERS.items():
                took = function(packages, workers, order)
                beside = function(packages, workers, order, each=0.25) - took
                yield (
                    f"  {schedule}, {name}: {took:.0f} s, {100 * total / workers / took:.1f} %; "
                    f"{beside:+.0f} s where each action takes 0.25 s more"
                )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description=__doc__)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--methods", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    options = parser.parse_args(arguments)
    found = durations(options.timeline)
    print("\n".join(report(found, options.methods, options.workers)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
