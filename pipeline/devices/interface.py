"""What a device is: the interface through which validation and loaded packages run every backend.

A device takes data as handles, builds a computation of a program, compiles it and executes it. The
shape of the interface is that of PyTorch's lazy backends (torch/csrc/lazy/backend), for programs
that exist already instead of graphs that are traced as they run.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pipeline.devices.bindings import Declared, DeclaredTensor
from pipeline.store.errors import DeviceError, PipelineError

__all__ = [
    "Computation",
    "Declared",
    "DeclaredTensor",
    "DeviceData",
    "DeviceError",
    "DeviceId",
    "LoweringContext",
    "PackageFiles",
    "Runtime",
    "Shape",
]

# Sizes and dtype of a tensor, where a dynamic size is the greatest; None is no tensor.
Shape = DeclaredTensor | None
_HANDLES = itertools.count(1)


@dataclass(frozen=True, order=True)
class DeviceId:
    """One device: its type, which is the name of its runtime, and its number among those."""

    type: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.type}:{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> DeviceId:
        """Of `interpreter` or `interpreter:0`. Raises PipelineError for anything else."""
        kind, colon, ordinal = text.partition(":")
        if not kind or (colon and not ordinal.isdecimal()):
            raise PipelineError(f"device '{text}': must be a type or type:number, as executorch:0")
        return cls(kind, int(ordinal or 0))


@dataclass(frozen=True, eq=False)
class PackageFiles:
    """A `.pte` and its `.ptd` files, on disk or in memory; `name` is for messages. Two of them are
    never equal, since files change."""

    name: str
    pte: Path | bytes
    ptds: tuple[Path | bytes, ...] = ()

    @classmethod
    def of(cls, pte: Path, ptds: Sequence[Path] = ()) -> PackageFiles:
        return cls(pte.name, pte, tuple(ptds))

    def contents(self) -> bytes:
        """The bytes of the `.pte`. Raises DeviceError where the file can't be read."""
        return self._read(self.pte)

    def data(self) -> list[bytes]:
        """The bytes of each `.ptd`."""
        return [self._read(ptd) for ptd in self.ptds]

    def _read(self, source: Path | bytes) -> bytes:
        if isinstance(source, bytes):
            return source
        try:
            return source.read_bytes()
        except OSError as error:
            raise DeviceError(f"{source.name}: ", f"cannot be read: {error.strerror}") from error


class DeviceData:
    """A value on a device, by handle. A placeholder has a shape and no value until something is
    assigned to it.

    Attributes:
        device: where it is.
        shape: of its value; None where that is no tensor.
        info: whatever a caller attaches to it; no device reads it.
        handle: its number, one for each handle of the process.
    """

    def __init__(self, device: DeviceId, shape: Shape, *value: Any) -> None:
        self.device = device
        self.shape = shape
        self.handle = next(_HANDLES)
        self.info: Any = None
        self._value = value

    @property
    def has_value(self) -> bool:
        return bool(self._value)

    @property
    def value(self) -> Any:
        """What the device holds, in its own form. Raises DeviceError for a placeholder."""
        if not self._value:
            raise DeviceError(f"{self.device}: ", f"handle {self.handle} has no value yet")
        return self._value[0]

    def assign(self, other: DeviceData) -> None:
        """Makes this the value of another handle, which both then share. Raises DeviceError where
        that has none, or is of another device or shape."""
        if other.device != self.device:
            reason = f"cannot take the value of a handle on {other.device}"
            raise DeviceError(f"{self.device}: ", reason)
        if not fits(other.shape, self.shape):
            reason = f"handle {self.handle} is of {shown(self.shape)}, not {shown(other.shape)}"
            raise DeviceError(f"{self.device}: ", reason)
        self._value = (other.value,)
        self.shape = other.shape

    def set_info(self, info: Any) -> Any:
        """Attaches something; returns what was attached before."""
        before, self.info = self.info, info
        return before

    def __repr__(self) -> str:
        state = "" if self.has_value else ", no value"
        return f"DeviceData({self.device} #{self.handle}, {shown(self.shape)}{state})"


def shape_of(value: Any) -> Shape:
    return DeclaredTensor(tuple(value.shape), value.dtype) if torch.is_tensor(value) else None


def fits(given: Shape, wanted: Shape) -> bool:
    """Whether a value of one shape can stand where another is declared: no size is greater."""
    if given is None or wanted is None:
        return given is wanted
    return (
        given.dtype == wanted.dtype
        and len(given.sizes) == len(wanted.sizes)
        and all(size <= most for size, most in zip(given.sizes, wanted.sizes, strict=True))
    )


def shown(shape: Shape) -> str:
    if shape is None:
        return "no tensor"
    return f"{str(shape.dtype).removeprefix('torch.')}{list(shape.sizes)}"


@dataclass(frozen=True, eq=False)
class Computation:
    """A method that a device can execute, once it is compiled. A compiled one keeps its method's
    state, the mutable buffers, from call to call; compiling again begins anew.

    Attributes:
        name: of the method.
        device: for which it was built.
        program: what computes it: a PackageFiles, or what else the runtime takes.
        compiled: the runtime's own; None before it is compiled.
    """

    name: str
    device: DeviceId
    program: Any
    parameter_names: tuple[str, ...]
    parameter_shapes: tuple[Shape, ...]
    result_names: tuple[str, ...]
    result_shapes: tuple[Shape, ...]
    compiled: Any = None

    def __str__(self) -> str:
        pairs = zip(self.parameter_names, self.parameter_shapes, strict=True)
        takes = ", ".join(f"{name}: {shown(shape)}" for name, shape in pairs)
        gives = ", ".join(shown(shape) for shape in self.result_shapes)
        return f"{self.name}({takes}) -> ({gives})"


@dataclass
class LoweringContext:
    """Collects the parameters and results of a method, and builds its computation of them."""

    name: str
    device: DeviceId
    program: Any
    declared: Declared
    parameters: list[DeviceData] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _results: list[tuple[str, Shape]] = field(default_factory=list)

    def add_parameter(self, data: DeviceData, name: str = "") -> int:
        """Takes a handle, as often a placeholder, as the next parameter; returns its place."""
        if data.device != self.device:
            raise self._error(f"parameter '{name}' is on {data.device}, must be on {self.device}")
        self.parameters.append(data)
        self._names.append(name or f"input_{len(self._names)}")
        return len(self.parameters) - 1

    def add_result(self, shape: Shape, name: str = "") -> int:
        """Adds the next result; returns its place."""
        self._results.append((name or f"output_{len(self._results)}", shape))
        return len(self._results) - 1

    def check_result_shape(self, data: DeviceData, place: int) -> bool:
        """Whether a result could be written over a parameter."""
        return data.shape == self._results[place][1]

    def build(self) -> Computation:
        """Raises DeviceError where parameters or results are not those that the method declares."""
        takes, gives = self.declared.inputs, self.declared.outputs
        shapes = tuple(data.shape for data in self.parameters)
        for kind, given, wanted in (
            ("parameter", list(shapes), takes),
            ("result", [shape for _, shape in self._results], gives),
        ):
            if len(given) != len(wanted):
                raise self._error(f"has {len(given)} {kind}s, must have {len(wanted)}")
            for place, (one, other) in enumerate(zip(given, wanted, strict=True)):
                if not fits(one, other):
                    raise self._error(f"{kind} {place} is {shown(one)}, must be {shown(other)}")
        return Computation(
            self.name,
            self.device,
            self.program,
            tuple(self._names),
            shapes,
            tuple(name for name, _ in self._results),
            tuple(shape for _, shape in self._results),
        )

    def _error(self, reason: str) -> DeviceError:
        return DeviceError(f"{self.device}: method '{self.name}' ", reason)


class Runtime(ABC):
    """All devices of one type. A subclass says what a program declares, how it is compiled and how
    a compiled one is run; where its values are not torch's, also how they get there and back."""

    type: str
    default_ordinal: int = 0

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    # What there is.

    def devices(self) -> list[DeviceId]:
        return [DeviceId(self.type)]

    @property
    def default_device(self) -> DeviceId:
        return DeviceId(self.type, self.default_ordinal)

    def check_device(self, device: DeviceId) -> DeviceId:
        """Raises DeviceError for one that is not there."""
        known = self.devices()
        if device not in known:
            raise DeviceError(f"{device}: ", f"no such device; known: {', '.join(map(str, known))}")
        return device

    # Data to the device and back.

    def to_device(self, value: Any, device: DeviceId | None = None) -> DeviceData:
        """A tensor or a scalar as a handle. The device has a copy."""
        own = value.detach().clone() if torch.is_tensor(value) else value
        return DeviceData(self.check_device(device or self.default_device), shape_of(value), own)

    def placeholder(self, shape: Shape, device: DeviceId | None = None) -> DeviceData:
        return DeviceData(self.check_device(device or self.default_device), shape)

    def to_host(self, data: DeviceData, dtype: torch.dtype | None = None) -> Any:
        """A copy of the value, a tensor converted to the dtype that it logically has, if given."""
        value = data.value
        return value.detach().clone().to(dtype or value.dtype) if torch.is_tensor(value) else value

    # Lowering, compiling, executing.

    @abstractmethod
    def methods(self, program: Any) -> list[str]:
        """The names of a program's methods. Raises DeviceError for what can't be opened."""

    @abstractmethod
    def declared(self, program: Any, method: str) -> Declared:
        """What a method takes and gives, flat, without loading it. Raises DeviceError."""

    def lowering_context(
        self, method: str, program: Any, device: DeviceId | None = None
    ) -> LoweringContext:
        device = self.check_device(device or self.default_device)
        return LoweringContext(method, device, program, self.declared(program, method))

    def lower(self, method: str, program: Any, device: DeviceId | None = None) -> Computation:
        """The computation of a whole method, its parameters and results as they are declared."""
        context = self.lowering_context(method, program, device)
        for shape in context.declared.inputs:
            context.add_parameter(self.placeholder(shape, context.device))
        for shape in context.declared.outputs:
            context.add_result(shape)
        return context.build()

    def compile(self, computations: Sequence[Computation]) -> list[Computation]:
        """Makes each ready to execute, with the initial state. Raises DeviceError."""
        return list(map(self._compiled, computations))

    def compile_together(self, computations: Sequence[Computation]) -> list[Computation]:
        """As `compile`, but of one program, whose methods share the state that the program gives
        them in common. Raises DeviceError too where each method has memory of its own here."""
        names = ", ".join(computation.name for computation in computations)
        raise DeviceError(f"{self.type}: ", f"methods share no state here: {names}")

    def _compiled(self, computation: Computation) -> Computation:
        self.check_device(computation.device)
        self._counts["compiled"] += 1
        return replace(computation, compiled=self.load(computation))

    @abstractmethod
    def load(self, computation: Computation) -> Any:
        """What stands in `compiled` of a computation. Raises DeviceError."""

    def execute(
        self,
        computation: Computation,
        inputs: Sequence[DeviceData],
        device: DeviceId | None = None,
    ) -> list[DeviceData]:
        """The results of one call, as handles. The inputs are left as they are.

        Raises:
            DeviceError: it is not compiled, an input is a placeholder or on another device, there
                are too few or too many, or the device refuses them.
        """
        device = self.check_device(device or computation.device)
        subject = f"{computation.name}: "
        if computation.compiled is None:
            raise DeviceError(subject, "is not compiled")
        if device != computation.device:
            raise DeviceError(subject, f"was compiled for {computation.device}, not {device}")
        if len(inputs) != len(computation.parameter_names):
            wanted = len(computation.parameter_names)
            raise DeviceError(subject, f"takes {wanted} inputs, {len(inputs)} given")
        for name, data in zip(computation.parameter_names, inputs, strict=True):
            if data.device != device:
                raise DeviceError(subject, f"'{name}' is on {data.device}, must be on {device}")
        started = time.perf_counter()
        try:
            results = self.call(computation, [data.value for data in inputs])
        finally:
            self._counts["executed"] += 1
            self._seconds += time.perf_counter() - started
        return [DeviceData(device, shape_of(value), value) for value in results]

    @abstractmethod
    def call(self, computation: Computation, values: Sequence[Any]) -> Sequence[Any]:
        """One call of a compiled computation, on values as `DeviceData` holds them. Raises
        DeviceError."""

    # For people, and the rest.

    def text(self, computation: Computation) -> str:
        """What the device makes of a computation, for people; its signature by default."""
        return str(computation)

    def set_seed(self, seed: int) -> None:
        """From which random operators draw; nothing where a device has no such thing."""
        return None

    def metrics(self) -> Mapping[str, float]:
        """Counts and seconds since the runtime was made."""
        counts = {f"computations {what}": float(n) for what, n in sorted(self._counts.items())}
        return {**counts, "seconds executing": self._seconds}

    def prepare_to_exit(self) -> None:
        """Gives up what it holds; called once, when the process ends."""
        return None


def metric_report(metrics: Mapping[str, float]) -> Iterator[str]:
    """Lines for people."""
    for name, value in metrics.items():
        yield f"{name}: {value:.6g}"
