"""The needs of a package that the runtimes of its targets don't meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from pipeline.config.fields import TargetNames
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.runs_on import (
    Method,
    Runtime,
    find_method_misfits,
    find_package_misfits,
    measure_misfits,
)


def measure(subject: GateSubject, names: Iterable[str]) -> Measured:
    runtimes = [Runtime(name, subject.targets[name]) for name in names]
    if subject.method is None:
        find_unmet = partial(find_package_misfits, subject.contract or {})
    else:
        needs = Method(
            subject.package, subject.facts, subject.contract or {}, tuple(subject.left)
        )
        find_unmet = partial(find_method_misfits, needs)
    find = partial(_find_all, subject.method or "", find_unmet)
    return measure_misfits(subject.package, subject.contract, runtimes, find)


def _find_all(
    method: str, find_unmet: Callable[[Runtime], Iterator[str]], runtime: Runtime
) -> Iterator[str]:
    """Yield the runtime's refusal to run the method, then the needs found by comparing lists."""
    refusal = runtime.facts.get("refusals", {}).get(method)
    if refusal:
        yield f"can't run it (tried in {runtime.facts['runtime']}): {refusal}"
    yield from find_unmet(runtime)


GATE = Gate(
    name="runs_on",
    holds_for=("package", "method"),
    values=TargetNames,
    unit="needs",
    text=(
        "The targets (names of files in targets/) whose runtimes must have everything that the "
        "package needs; by default, the config's `target` if it has a file there. [] disables the "
        "gate."
    ),
    example="[phone]",
    measure=measure,
    needs_feature="contracts",
)
