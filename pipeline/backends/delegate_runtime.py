"""The interface of Python runtimes of delegates, for backends that ExecuTorch's runtime lacks.

A backend or a plugin provides one as `Execution.make_runtime` (pipeline/backends/entry.py). The
interpreter (pipeline/features/locating/interpreter) passes it each delegate of its backend, with
the bytes from the `.pte`, not those of the preprocess function. This module doesn't import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.store.errors import DeviceError


class DelegateError(DeviceError):
    """The error for a delegate that refuses its bytes or a call.

    `debug_handle` is the handle of the instruction that failed, if the delegate knows it: a number
    that `debug_handle_map` of the preprocess result maps to a node.
    """

    def __init__(self, reason: str, debug_handle: int | None = None) -> None:
        super().__init__("", reason, debug_handle)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would unpickle it with the arguments of its base class.
        return type(self), (self.reason, self.debug_handle)


@dataclass(frozen=True)
class Timing:
    """The time of one instruction of a delegate. `debug_handle` is None if it has none."""

    name: str
    seconds: float
    debug_handle: int | None = None


class DelegateRuntime(ABC):
    """Runs the delegates of one backend.

    `init` is called once for each delegate of a loaded method, `execute` for each call, `destroy`
    when the method is released. A handle is whatever the runtime makes of a delegate. State that a
    delegate keeps between calls belongs in it: two loaded methods never share one.
    """

    @abstractmethod
    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Any:
        """Return a handle for a delegate.

        Args:
            compile_specs: the key and value of each spec, in order.
            named_data: all named data of the package and its `.ptd` files, by key.

        Raises:
            DelegateError: the bytes aren't a payload of the backend.
        """

    @abstractmethod
    def execute(self, handle: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of one call, in the order of the partition's.

        Inputs are tensors, or the numbers of dynamic sizes. They must not be changed, and outputs
        must share memory neither with them nor with the handle.

        Raises:
            DelegateError: an instruction failed.
        """

    def timings(self, handle: Any) -> Iterable[Timing]:
        """Return the timings of the last call, by instruction, or () if the runtime keeps none."""
        return ()

    def destroy(self, handle: Any) -> None:
        """Release a handle, which is not used again."""
        return None
