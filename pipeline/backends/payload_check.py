"""Define the record by which a backend checks the payload of a delegate that nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class DelegateCall:
    """A delegate of a package, and the call of it in a method's plan.

    Attributes:
        payload: its processed bytes, as the `.pte` has them.
        named: all named data of the package and its `.ptd` files, by key.
        inputs: the sizes of the call's inputs, dynamic sizes as upper bounds; None for what isn't
            a tensor.
        outputs: the sizes of its outputs, in the same way.
    """

    method: str
    payload: bytes
    named: Mapping[str, bytes]
    inputs: tuple[Sizes | None, ...]
    outputs: tuple[Sizes | None, ...]
