"""Moves weights from memory to the store when a backend names them, or when they are emitted.

ExecuTorch keeps weights as bytes until the program is written. Here a blob stands in for each large
one, as in linking, so that lowering needs no second copy of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.emit import _emitter
from executorch.exir.program import _program
from executorch.exir.schema import Buffer

from pipeline.compile.objects import BlobBytes, put_blob
from pipeline.program.patching import replaced
from pipeline.store.store import Store

SPILLED_FROM = 1 << 20  # bytes
spills: ContextVar[bool] = ContextVar("spills", default=False)  # within `spilling`


@contextmanager
def spilling() -> Iterator[None]:
    """Allow stand-ins for large weights in programs that are lowered within the context.

    Only `make_object` may write such a program.
    """
    token = spills.set(True)
    try:
        yield
    finally:
        spills.reset(token)


@contextmanager
def spilled_data(module: str, store: Store | None) -> Iterator[None]:
    """Let a module's `NamedDataStore` put large data into a store, within `spilling`."""
    if store is None or not module or not spills.get():
        yield
        return
    with replaced(
        import_module(module), "NamedDataStore", lambda original: _spill_to(store)
    ):
        yield


def _spill_to(store: Store) -> type[NamedDataStore]:
    class Spilling(NamedDataStore):
        def add_named_data(
            self, key: str, data: Any, *args: Any, **kwargs: Any
        ) -> None:
            super().add_named_data(
                key,
                _spill(data, store),
                *args,
                **kwargs,
            )

    return Spilling


@contextmanager
def spilled_constants(store: Store | None) -> Iterator[None]:
    """Let large constants go to a store when they are emitted, within `spilling`.

    ExecuTorch then serializes no program, which linking would do again.
    """
    if store is None or not spills.get():
        yield
        return

    def make_buffer(original: type[Buffer]) -> Callable[..., Buffer]:
        return lambda storage: original(storage=_spill(storage, store))

    with (
        replaced(_emitter, "Buffer", make_buffer),
        replaced(
            _program,
            "serialize_for_executorch",
            lambda original: lambda *args: (None, {}),
        ),
    ):
        yield


def _spill(data: Any, store: Store) -> Any:
    # Not `isinstance`: a stand-in for a blob is an instance of a subclass.
    large = type(data) is bytes and len(data) >= SPILLED_FROM
    if large:
        return BlobBytes(put_blob(store, data))
    return data
