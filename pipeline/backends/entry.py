"""The records that make an entry of the backend catalogue. No torch until a part is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pipeline.backends.delegate_devices import describe_device, find_device
from pipeline.backends.host import Host
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torchao.quantization.pt2e.quantizer import Quantizer

    from pipeline.backends.delegate_runtime import DelegateRuntime
    from pipeline.backends.payload_check import DelegateCall

PayloadCheck: TypeAlias = "Callable[[DelegateCall], Iterable[str]]"
Why: TypeAlias = "dict[Node, str]"
Reasons: TypeAlias = "Callable[[Partitioner, ExportedProgram], AbstractContextManager[Why]]"
# An operator, as aten.add.Tensor; a node, by its name; a part of the name of a module's type.
NameKind: TypeAlias = Literal["operator", "node", "module type"]
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_QUANTIZER_HOST = Host(distributions=("executorch", "torch", "torchao"))


def lazy(target: str) -> Callable[..., Any]:
    """Return a function that imports `module:function` of a family when it is called, and calls
    it."""
    return lambda *args: resolve_name(target)(*args)


@dataclass(frozen=True)
class Lowering:
    """The part of a backend that lowers programs: a partitioner, or passes.

    Attributes:
        make_partitioner: makes a partitioner of the options; imports the backend. None where it
            lowers by passes, or this package can't lower to it.
        make_passes: makes passes over the edge program of a method of the options; imports the
            backend.
        kernels: the namespace of the operators that its passes make, which the device's runtime
            has kernels for, and no delegate.
        preserve_ops: operators that edge conversion leaves whole for its passes.
        edge_operators: operators beyond Core ATen that its quantizer leaves in a program and its
            partitioner takes, such as "aten.bitwise_and.Scalar".
        reasons: a context around one call of its partitioner with a program, giving a mapping from
            nodes to why they were left that is full when it ends; the partitioner chooses the same
            within it. None where it tells nothing.
        control_flow: the control flow whose bodies its partitioner looks into, as in "cond"; None
            where that is not known.
        takes_quantized: of the options and the config of another backend's quantizer, the config
            line that its partitioner needs to lower what that quantizes, "" if it needs none, or
            None if it can't lower that. None where it lowers no other's.
        check: of the options and a program with its partitioner's tags, yields a sentence for what
            its backend will do otherwise than the options say.
        name_lists: the options that list what nodes of the edge program it leaves, or takes alone.
    """

    make_partitioner: Callable[[Any], Partitioner] | None = None
    make_passes: Callable[[Any], Sequence[ExportedProgramPassBase]] | None = None
    kernels: str = ""
    preserve_ops: tuple[str, ...] = ()
    edge_operators: tuple[str, ...] = ()
    reasons: Reasons | None = None
    control_flow: frozenset[str] | None = None
    name_lists: Mapping[str, NameKind] = field(default_factory=dict)
    takes_quantized: Callable[[Any, QuantizeConfig], str | None] | None = None
    check: Callable[[Any, ExportedProgram], Iterable[str]] | None = None


@dataclass(frozen=True)
class Quantization:
    """One quantizer: that of a backend, or one without a backend of its own.

    Attributes:
        options: the model of its options.
        make_quantizer: makes a quantizer of the options; imports the backend.
        apply_quantizer: instead of `prepare_pt2e` and `convert_pt2e`, for backends that quantize
            in their own way: an ATen module, the config and batches of calibration inputs, which
            are tuples of arguments, to the quantized module.
        host: what it needs of the machine; in `QUANTIZERS` that of its backend.
        backends: by their names, further backends that take what it quantizes; None is any.
    """

    options: type[QuantizeConfig]
    make_quantizer: Callable[[Any], Quantizer | None] = lambda options: None
    apply_quantizer: Callable[[GraphModule, Any, Iterable[Any]], GraphModule] | None = None
    host: Host = _QUANTIZER_HOST
    backends: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class CacheScope:
    """The part of a partition that a backend's preprocess function depends on; by default, all.

    Only what is known not to change its output may be left out: the cache then takes partitions
    that differ in nothing else for one.

    Attributes:
        names_count: whether names of nodes and tensors can matter in this program.
        unread: keys of `node.meta` that it does not read.
        read: returns what it reads of them all the same, for the nodes of one graph.
        remap: gives a payload other debug handles, byte for byte as if it had been made with them,
            or None if it can't; a payload that holds none is given back. Without it, debug handles
            are part of the scope.
        fixed_handles: debug handles that mean something to the payload, and so always count.
    """

    names_count: Callable[[ExportedProgram], bool] = lambda program: True
    unread: frozenset[str] = frozenset()
    read: Callable[[Sequence[Node]], Sequence[Any]] = lambda nodes: [None] * len(nodes)
    remap: Callable[[bytes, Mapping[int, int]], bytes | None] | None = None
    fixed_handles: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Preprocessing:
    """The part of a backend that makes payloads of partitions.

    Attributes:
        function: its preprocess function as `module:function`, which is imported when something
            is lowered: of a program and its compile specs to a `PreprocessResult`. A backend that
            has it needs no `BackendDetails` class; where both are there, the function is called.
        details: its `BackendDetails` class as `module:Class`, if one is installed.
        joint: its class overrides `preprocess_multimethod`, so that it sees all methods at once.
        options_apart: whether, by the options of a method's partitioner, a joint backend
            preprocesses each method by itself all the same, if the options of all methods say so.
        specs_apart: the same by the compile specs of a partition.
        around: a context in which the function gives the same bytes for the same partition, and
            refuses what its runtime can't run; by default it does so anyway.
        make_cache_scope: returns what of a partition the function depends on.
        names_count: whether what it makes of a method can depend on the names of its values, or of
            modules' classes but for torch's own.
        weights_apart: whether its payloads hold no weights, but name them by the SHA-256 of their
            bytes, as named data, and depend on their values in no other way. New weights are then
            put into what was lowered.
        unreproducible: why its bytes differ from run to run all the same, or "".
        keeps_constants: whether it is known to write to no constant in place, so that it may be
            given those of the program, and not copies.
        names_data: the module, as `module`, whose `NamedDataStore` it puts weights into, where they
            may leave memory at once for the store.
    """

    function: str = ""
    details: str = ""
    joint: bool = False
    options_apart: Callable[[Any], bool] = lambda options: False
    specs_apart: Callable[[Sequence[CompileSpec]], bool] = lambda specs: False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    make_cache_scope: Callable[[], CacheScope] = CacheScope
    names_count: bool = True
    weights_apart: bool = False
    unreproducible: str = ""
    keeps_constants: bool = False
    names_data: str = ""


@dataclass(frozen=True)
class Execution:
    """The part of a backend that runs its delegates.

    Attributes:
        make_runtime: makes a Python runtime of its delegates, with which the interpreter runs what
            ExecuTorch's own runtime can't; imports the backend. None where it has none.
        cannot_run: returns why this machine can't run what it makes, or "". None where every
            machine that builds can.
        facts: returns what else of this machine counts for a run, for the keys of validation.
        elsewhere: what runs it where this machine can't, in two or three words.
        check_payload: yields what is wrong with a delegate, without running it. None where nothing
            here reads its payload.
    """

    make_runtime: Callable[[], DelegateRuntime] | None = None
    cannot_run: Callable[[], str] | None = None
    facts: Callable[[], Mapping[str, str]] | None = None
    elsewhere: str = ""
    check_payload: PayloadCheck | None = None


@dataclass(frozen=True)
class Backend:
    """One entry of the catalogue.

    Attributes:
        name: what configs call it.
        backend_id: by what name a program calls the delegate.
        summary: what it is for, in a few words.
        options: the model of the options of its partitioner, or of its passes.
        quantization: its quantizer, or None.
        plugin: the distribution that brings it, where this package does not.
        documented: the address of upstream's documentation, of what nothing here lowers to.
    """

    name: str
    backend_id: str
    summary: str
    options: type[Options]
    lowering: Lowering = Lowering()
    quantization: Quantization | None = None
    preprocessing: Preprocessing = Preprocessing()
    host: Host = field(default_factory=Host)
    execution: Execution = Execution()
    plugin: str = ""
    documented: str = ""

    def __post_init__(self) -> None:
        for name in ("function", "details"):
            target = getattr(self.preprocessing, name)
            if target and not _TARGET.fullmatch(target):
                raise ValueError(f"{self.name}: {name} must be `module:name`, not {target!r}")
        if self.preprocessing.function and self.preprocessing.joint:
            raise ValueError(
                f"{self.name}: a preprocess function sees one partition at a time, so this backend "
                "can't be joint"
            )

    @property
    def overridden(self) -> str:
        """Describe which of a preprocess function and a class is called; "" without both."""
        function, details = self.preprocessing.function, self.preprocessing.details
        if not (function and details):
            return ""
        return f"{self.name} is preprocessed by {function}, and not by {details}"

    @property
    def lowers(self) -> bool:
        """Return whether there is code that lowers to it."""
        return bool(self.lowering.make_partitioner or self.lowering.make_passes)

    @property
    def asks_machine(self) -> bool:
        """Return whether `machine` can hold anything."""
        return bool(self.host.facts or self.host.requirements or self.execution.cannot_run)

    @property
    def device(self) -> str:
        """Return the device that runs what this machine can't, or ""."""
        return find_device(self.backend_id) if self.execution.cannot_run is not None else ""

    def explain_not_run(self) -> str:
        """Return why nothing here runs what it makes, or ""."""
        cannot_run = self.execution.cannot_run
        return "" if cannot_run is None or self.device else cannot_run()

    @property
    def machine(self) -> dict[str, Any]:
        """Return what of this machine counts for it: `facts`, the names of what is `missing`, why
        it `cannot_run` here, and what it `runs_with`; each only where there is something."""
        facts, runs_with = self.host.facts, self.execution.facts
        if device := self.device:
            run_facts = describe_device(device)
        else:
            run_facts = dict(sorted(runs_with().items())) if runs_with is not None else {}
        values = {
            "facts": dict(sorted(facts().items())) if facts is not None else {},
            "missing": [need.what for need in self.host.missing()],
            "cannot_run": self.explain_not_run(),
            "runs_with": run_facts,
        }
        return {name: value for name, value in values.items() if value}
