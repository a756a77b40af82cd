"""The calls of a validation, kept so that devices can repeat them.

Each call is kept with its expected outputs and their limits, so that devices are judged exactly as
this machine was, and no program runs a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.validate.runs import JudgedCall

_MOST_BYTES = 2**29  # of a package's inputs and outputs; further calls are only counted


class KeptCall:
    """A call that was judged on this machine.

    Attributes:
        method: the method that was called.
        values: its flat inputs.
        expected: the flat outputs of the program that was lowered.
        judged: the verdict on this machine, with the limits of each output.
        outputs: the names of the outputs.
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
        """The inputs and the place in a sequence, as failures name them."""
        judged = self.judged
        if not judged.step:
            return judged.origin
        return f"{judged.origin} (call {judged.step} from {judged.sequence})"

    @property
    def size(self) -> int:
        """The size of the call's tensors in bytes."""
        values = (*self.values, *self.expected)
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


class CallLog:
    """The calls of a package, in sequences that each start from the initial state.

    Attributes:
        sequences: the calls that follow each other; a call of a stateless method is a sequence by
            itself.
        left_out: by method, the number of calls beyond the size limit, which weren't kept.
    """

    def __init__(self) -> None:
        self.sequences: list[list[KeptCall]] = []
        self.left_out: dict[str, int] = {}
        self._size = 0
        self._is_broken = False

    def add(self, call: KeptCall) -> None:
        """Keep a call if the size limit allows it and allowed all earlier calls of its sequence."""
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
        """Return, for each method, the first sequence that begins with it."""
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
