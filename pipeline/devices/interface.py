"""The interface of devices, through which validation and loaded packages run every backend.

A device runs the methods of packages. It knows nothing of their source programs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch

from pipeline.program.pte import PlanFacts, read_plans
from pipeline.store.errors import DeviceError

__all__ = ["DeclaredTensor", "Device", "DeviceError", "FlatSignature", "PackageFiles"]


@dataclass(frozen=True)
class DeclaredTensor:
    """An input or output as a package declares it, with upper bounds for dynamic dimensions."""

    sizes: tuple[int, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.sizes)}"


@dataclass(frozen=True)
class FlatSignature:
    """The flat inputs and outputs that a package declares for a method; None for non-tensors."""

    inputs: tuple[DeclaredTensor | None, ...]
    outputs: tuple[DeclaredTensor | None, ...]


@dataclass(frozen=True, eq=False)
class PackageFiles:
    """A `.pte` and its `.ptd` files, on disk or in memory; `name` is for messages.

    Two objects are never equal, since files change.
    """

    name: str
    pte: Path | bytes
    ptds: tuple[Path | bytes, ...] = ()

    @classmethod
    def of(cls, pte: Path, ptds: Sequence[Path] = ()) -> PackageFiles:
        return cls(pte.name, pte, tuple(ptds))

    def contents(self) -> bytes:
        """Read the `.pte`. Raises DeviceError."""
        return self._read(self.pte)

    def data(self) -> list[bytes]:
        """Read each `.ptd`. Raises DeviceError."""
        return [self._read(ptd) for ptd in self.ptds]

    @cached_property
    def plans(self) -> dict[str, PlanFacts]:
        """The plans of the `.pte` by method; empty if it isn't a program. Raises DeviceError."""
        if isinstance(self.pte, bytes):
            return read_plans(memoryview(self.pte))
        with self._readable(self.pte), open(self.pte, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return {}
            # Memory-mapped, since the weights, most of the file, aren't read.
            return read_plans(memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)))

    def _read(self, source: Path | bytes) -> bytes:
        if isinstance(source, bytes):
            return source
        with self._readable(source):
            return source.read_bytes()

    @contextmanager
    def _readable(self, source: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            subject = (
                source.name if source is self.pte else f"{self.name}: {source.name}"
            )
            raise DeviceError(
                f"{subject}: ", f"cannot be read: {error.strerror}"
            ) from error


class Device(ABC):
    """Runs the methods of packages. Raises DeviceError for what it can't run."""

    @abstractmethod
    def load(self, files: PackageFiles, method: str) -> Any:
        """Make a method ready to run, with its initial state.

        Returns:
            The device's own record of the loaded method, for `call`. It keeps the method's state,
            the mutable buffers, from call to call; loading again starts over.
        """

    @abstractmethod
    def call(self, loaded: Any, values: Sequence[Any]) -> list[Any]:
        """Run a loaded method once.

        Args:
            values: the flat inputs. Tensors have any layout, and must not be changed.

        Returns:
            The flat outputs, in memory that later calls don't write to.
        """

    @property
    def shares_state(self) -> bool:
        """Whether `load_together` lets methods share state."""
        return type(self).load_together is not Device.load_together

    def load_together(
        self, files: PackageFiles, methods: Sequence[str]
    ) -> dict[str, Any]:
        """Load methods as `load` does, but let them share the state that the package shares.

        Devices that give each method its own memory raise DeviceError.
        """
        raise DeviceError(
            f"{files.name}: ", f"methods share no state here: {', '.join(methods)}"
        )

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        """Describe in lines of text what the device runs for a method."""
        return []
