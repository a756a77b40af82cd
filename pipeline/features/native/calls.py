"""The calls of a validation, kept to be repeated on devices.

Each call is kept with what it was compared with and the limits that its outputs were held to, so
that a device is judged as this machine was, and no program runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.validate.runs import JudgedCall

_MOST_BYTES = (
    2**29
)  # of inputs and outputs of a package; the calls beyond it are counted only


class KeptCall:
    """A call that was judged here.

    Attributes:
        method: the method that was called.
        values: its flat inputs.
        expected: what the program that was lowered gives, flat.
        judged: how it was judged here, with the limits of each output.
        outputs: the outputs' names.
    """

    def __init__(
        self,
        method: str,
        values: Sequence[Any],
        expected: Sequence[Any],
        judged: JudgedCall,
        outputs: Sequence[str],
    ) -> None:
        self.method = method
        self.values = values
        self.expected = expected
        self.judged = judged
        self.outputs = outputs

    @property
    def where(self) -> str:
        """The inputs, and the place in a sequence, as failures name them."""
        judged = self.judged
        if not judged.step:
            return judged.origin
        return f"{judged.origin} (call {judged.step} from {judged.sequence})"

    @property
    def size(self) -> int:
        """The bytes of its tensors."""
        values = (*self.values, *self.expected)
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


class CallLog:
    """The calls of a package in sequences, each of which begins with the initial state.

    Attributes:
        sequences: a call of a method without state is a sequence of its own.
        left_out: how many calls there was no room for, by method.
    """

    def __init__(self) -> None:
        self.sequences: list[list[KeptCall]] = []
        self.left_out: dict[str, int] = {}
        self._size = 0
        self._is_broken = False

    def add(self, call: KeptCall) -> None:
        """Keep a call, unless it follows one that there was no room for."""
        begins = call.judged.step <= 1
        if begins:
            self._is_broken = False
        if self._is_broken or self._size + call.size > _MOST_BYTES:
            self._is_broken = True
            self.left_out[call.method] = self.left_out.get(call.method, 0) + 1
            return
        self._size += call.size
        if begins:
            self.sequences.append([])
        self.sequences[-1].append(call)

    def first_sequences(self) -> list[list[KeptCall]]:
        """Return the first sequence that begins with each method."""
        first: dict[str, list[KeptCall]] = {}
        for sequence in self.sequences:
            first.setdefault(sequence[0].method, sequence)
        return list(first.values())

    def methods(self) -> list[str]:
        """Return the methods that were called, in the order of their first calls."""
        names: dict[str, None] = {}
        for sequence in self.sequences:
            for call in sequence:
                names[call.method] = None
        return list(names)
