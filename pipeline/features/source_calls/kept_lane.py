"""A lane that skips calls whose outputs are in the store.

The outputs of a call depend on all calls since the initial state. If a call's outputs are stored,
it stays postponed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pipeline.features.source_calls.bodies import Bodies
from pipeline.features.source_calls.key import hash_inputs, source_call_key
from pipeline.program.constant_values import decode_constant, encode_constant
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.validate.references import Call, Lane

# Seconds; storing the outputs of a shorter call takes longer than repeating the call.
_LEAST_SECONDS = 0.02


class CallResults:
    """Stored results of calls of source programs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._digests: WeakKeyDictionary[InputSet, Digest] = WeakKeyDictionary()

    def hash_inputs(self, inputs: InputSet) -> Digest:
        """Return the digest of an input set, computed once."""
        if inputs not in self._digests:
            self._digests[inputs] = hash_inputs(inputs)
        return self._digests[inputs]

    def find(self, key: Mapping[str, Any]) -> tuple[list[Any], list[str]] | None:
        """Return a call's outputs and the bodies that it ran, or None if a part isn't stored.

        The bodies are those of `Bodies.recording`.
        """
        action = hash_json(key)
        # Read only the local store: a remote would be asked for each call.
        entry = self._store.read_entry(self._store.action_path(action), action)
        if entry is None or not self._store.trusts(entry.vouchers):
            return None
        try:
            values, _ = decode_constant(entry.result["outputs"], self._store.read)
        except PipelineError:  # a blob is missing or malformed
            return None
        return list(values), entry.result["bodies"]

    def add(
        self, key: Mapping[str, Any], outputs: Sequence[Any], bodies: Sequence[str]
    ) -> None:
        """Store a call, unless the form of its outputs would change when they are read back."""
        for value in outputs:
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                return
        try:
            encoded = encode_constant(list(outputs), self._store.put)
        except ValueError:  # None, or a string that no package returns
            return
        call = {"outputs": encoded, "bodies": list(bodies)}
        self._store.put_result(key, call, pushes=False)


class KeptLane(Lane):
    """A lane that stores its calls: their outputs, and which bodies of control flow they run."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, Source],
        identities: Mapping[str, Sequence[Digest | None]],
        results: CallResults,
    ) -> None:
        super().__init__(name, sources)
        self._identities = identities
        self._results = results
        self._bodies = {method: Bodies(source) for method, source in sources.items()}
        self._calls: list[Call] = []

    def reset(self) -> None:
        self._calls = []
        super().reset()

    def postpone(
        self, method: str, inputs: InputSet, as_it_lies: bool = False, seed: int = 0
    ) -> None:
        if not self.has_state:
            self._calls = []
        self._calls.append((method, inputs, as_it_lies, seed))
        super().postpone(method, inputs, as_it_lies, seed)

    def run_postponed(self) -> list[Any]:
        key = self._make_key()
        bodies = self._bodies[self._calls[-1][0]]
        stored = self._results.find(key) if key else None
        if stored is not None and bodies.can_report(stored[1]):
            outputs, ran = stored
            bodies.report(ran)
            return outputs
        self._catch_up()
        started = time.perf_counter()
        with bodies.recording() as running_bodies:
            outputs = super().run_postponed()
        if key and time.perf_counter() - started >= _LEAST_SECONDS:
            self._results.add(key, outputs, [*running_bodies])
        return outputs

    def _make_key(self) -> dict[str, Any] | None:
        """Return the key of the last call, or None if a call takes inputs as they lie in memory."""
        calls = []
        for method, inputs, as_it_lies, seed in self._calls:
            if as_it_lies:
                return None
            calls.append((method, self._results.hash_inputs(inputs), seed))
        return source_call_key(self.name, self._identities, calls)
