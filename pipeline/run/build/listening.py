"""What features learn from a compilation: the base class of `moments.Feature.listen_to_compile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class CompileListener:
    """One feature, while one unit is compiled; each method may be left as it is here."""

    @property
    def forgoes_cache(self) -> bool:
        """Whether every partition is to be preprocessed, since nothing is learnt of a payload that
        the store holds."""
        return False

    def add_sources(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Take the programs of the unit's methods, as they are in their archives."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen within the context, in which the unit is lowered and emitted."""
        yield

    def end(self, result: Mapping[str, Any], peak: int) -> None:
        """Take the result, once it is in the store, and the bytes of memory that compiling took."""
