"""What a package needs that the runtimes of its targets lack."""

from __future__ import annotations

from collections.abc import Iterable
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
        find = partial(find_package_misfits, subject.contract or {})
    else:
        needs = Method(
            subject.package, subject.facts, subject.contract or {}, tuple(subject.left)
        )
        find = partial(find_method_misfits, needs)
    return measure_misfits(subject.package, subject.contract, runtimes, find)


GATE = Gate(
    name="runs_on",
    holds_for=("package", "method"),
    values=TargetNames,
    unit="needs",
    text=(
        "The targets whose runtimes must hold all that the package needs, by their names in "
        "targets/; by default the config's `target`, if it has a file there, and [] is none."
    ),
    example="[phone]",
    measure=measure,
    needs_feature="contracts",
)
