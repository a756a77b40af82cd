"""The size of all packages of a family."""

from __future__ import annotations

from pipeline.config.fields import Size
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import MOST, NAME_FAMILY, describe_own_files
from pipeline.store.errors import listed, plural


def measure(package: GateSubject, limit: int) -> Measured:
    if not package.family:
        return (
            None,
            f"it has no family, whose size max_family_size limits; {NAME_FAMILY}",
        )
    unbuilt = [member for member, files in package.family.items() if not files]
    if unbuilt:
        names = listed(unbuilt, MOST)
        return (
            None,
            f"max_family_size can't be checked, since these aren't built: {names}",
        )
    sizes = {
        content: n for files in package.family.values() for content, n in files.values()
    }
    size = sum(sizes.values())
    sentence = (
        f"the {plural(len(package.family), 'package')} of the family have {size} bytes"
    )
    return size, f"{sentence}, at most {limit} allowed; {describe_own_files(package)}"


GATE = Gate(
    name="max_family_size",
    holds_for=("package",),
    values=Size,
    unit="bytes",
    text=(
        "The maximum total size of the family's packages, with shared files counted once."
    ),
    example="40MB",
    measure=measure,
    needs_feature="families",
)
