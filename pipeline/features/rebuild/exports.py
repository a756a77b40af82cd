"""Reports whether an exporter gives the same programs again: here, or on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.program.sources import MethodSource
from pipeline.store.digest import hash_json

Methods = Mapping[str, MethodSource]
_SHOWN = 16  # digits of a digest


def compare_methods(before: Methods, after: Methods) -> Iterator[str]:
    """Yield a line for each method of an exporter, with short digests of its program and inputs.

    The digests can be compared with those of another machine. A digest that has changed is followed
    by the earlier one.
    """
    for name in dict.fromkeys([*before, *after]):
        words = []
        old = _digests(before.get(name))
        for noun, digest in _digests(after.get(name)).items():
            changed = "" if old.get(noun) == digest else f" (it was {old.get(noun)})"
            words.append(f"{noun} {digest}{changed}")
        yield f"{name}: {', '.join(words) or 'it is gone'}"


def _digests(method: MethodSource | None) -> dict[str, str]:
    """Return short digests of a method's program and inputs, empty for no method."""
    if method is None:
        return {}
    inputs = [method.examples, method.calibration, method.reference]
    digests = {"program": method.program, "inputs": hash_json(inputs)}
    return {noun: digest[:_SHOWN] for noun, digest in digests.items()}
