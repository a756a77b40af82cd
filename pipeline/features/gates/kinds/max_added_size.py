"""The size that a package adds to its family."""

from __future__ import annotations

from pipeline.config.fields import Size
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import NAME_FAMILY, find_own_files


def measure(package: GateSubject, limit: int) -> Measured:
    if not package.family:
        return (
            None,
            f"it has no family, to which max_added_size is added; {NAME_FAMILY}",
        )
    own_files = find_own_files(package.family, package.package)
    size = sum(own_files.values())
    named = ", ".join(f"{name} {n}" for name, n in own_files.items())
    sentence = f"the package adds {size} bytes to its family, at most {limit} allowed"
    return size, f"{sentence}; its own are {named}"


GATE = Gate(
    name="max_added_size",
    holds_for=("package",),
    values=Size,
    unit="bytes",
    text=(
        "The maximum total size of the files that only this package of the family uses. An app "
        "that already has the other packages downloads only these files."
    ),
    example="500kB",
    measure=measure,
    needs_feature="families",
)
