"""Define the record by which a backend checks the payload of a delegate that nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class DelegateCall:
    """A delegate of a package, and the call of it in a method's plan.

    Attributes:
        payload: its processed bytes, as they stand in the `.pte`.
        named: all that the package and its `.ptd` files hold, by key.
        inputs: the sizes of the tensors that the call gives it, a dynamic one as its upper bound;
            None for what is no tensor.
        outputs: those of the tensors that it gives.
    """

    method: str
    payload: bytes
    named: Mapping[str, bytes]
    inputs: tuple[Sizes | None, ...]
    outputs: tuple[Sizes | None, ...]
