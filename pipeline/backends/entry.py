"""The records of an entry of the backend catalogue. torch is only imported to build a part."""

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
# The sizes of a delegate call's values, with upper bounds for dynamic sizes; None for a value that
# isn't a tensor.
CallSizes: TypeAlias = "Sequence[tuple[int, ...] | None]"
PayloadCheck: TypeAlias = (
    "Callable[[str, bytes, Mapping[str, bytes], CallSizes, CallSizes], Iterable[str]]"
)
Why: TypeAlias = "dict[Node, str]"
Reasons: TypeAlias = (
    "Callable[[Partitioner, ExportedProgram], AbstractContextManager[Why]]"
)
# An operator such as aten.add.Tensor; a node's name; a part of the name of a module's type.
NameKind: TypeAlias = Literal["operator", "node", "module type"]
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_QUANTIZER_HOST = Host(distributions=("executorch", "torch", "torchao"))


def lazy(target: str) -> Callable[..., Any]:
    """Return a function that imports `module:function` of a family when called, and calls it."""
    return lambda *args: resolve_name(target)(*args)


@dataclass(frozen=True)
class Lowering:
    """A backend's way to lower programs: with a partitioner or with passes.

    Attributes:
        make_partitioner: makes a partitioner from the options; imports the backend. None if it
            lowers by passes, or this package can't lower to it.
        make_passes: makes passes over the edge program of a method from the options; imports the
            backend.
        kernels: the namespace of the operators that its passes produce. The device's runtime has
            kernels for them instead of a delegate.
        preserve_ops: operators that edge conversion must not decompose, for its passes.
        edge_operators: operators beyond Core ATen that its quantizer leaves in a program and its
            partitioner takes, such as "aten.bitwise_and.Scalar".
        reasons: a context around one call of its partitioner with a program. It yields a mapping
            from nodes to why they were not taken, complete when the context ends, and must not
            change what the partitioner takes. None if reasons can't be found.
        control_flow: the control flow whose bodies its partitioner looks into, such as "cond"; None
            if that isn't known.
        takes_quantized: takes the options and the config of another backend's quantizer, and
            returns the config line that its partitioner needs to lower that quantizer's output, ""
            if it needs none, or None if the partitioner can't lower it. None if it lowers no other
            quantizer's output.
        check: takes the options and a program with its partitioner's tags, and yields a sentence
            for each way in which its backend will deviate from the options.
        name_lists: the options that list nodes of the edge program to leave or to take.
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
    """One quantizer, with or without a backend.

    Attributes:
        options: the model of its options.
        make_quantizer: makes a quantizer from the options; imports the backend.
        apply_quantizer: replaces `prepare_pt2e` and `convert_pt2e` for backends that quantize in
            their own way: takes an ATen module, the config and batches of calibration inputs, which
            are tuples of arguments, and returns the quantized module.
        host: its requirements on the machine; in `QUANTIZERS`, its backend's.
        backends: names of further backends that lower its output; None means any.
    """

    options: type[QuantizeConfig]
    make_quantizer: Callable[[Any], Quantizer | None] = lambda options: None
    apply_quantizer: Callable[[GraphModule, Any, Iterable[Any]], GraphModule] | None = (
        None
    )
    host: Host = _QUANTIZER_HOST
    backends: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class CacheScope:
    """The part of a partition that a backend's preprocess function depends on; by default, all.

    Leave out only what is known not to change its output: the cache treats partitions as equal if
    they agree in this part.

    Attributes:
        names_count: whether names of nodes and tensors can matter in this program.
        unread: keys of `node.meta` that it doesn't read.
        read: returns, for the nodes of one graph, the parts of these keys that it does read.
        remap: returns a payload with other debug handles, byte for byte as if it had been made with
            them, or None if it can't; a payload without handles is returned unchanged. Without it,
            debug handles are part of the scope.
        fixed_handles: debug handles that have a meaning for the payload, and so are always part of
            the scope.
    """

    names_count: Callable[[ExportedProgram], bool] = lambda program: True
    unread: frozenset[str] = frozenset()
    read: Callable[[Sequence[Node]], Sequence[Any]] = lambda nodes: [None] * len(nodes)
    remap: Callable[[bytes, Mapping[int, int]], bytes | None] | None = None
    fixed_handles: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Preprocessing:
    """A backend's way to turn partitions into payloads.

    Attributes:
        function: its preprocess function as `module:function`, imported when something is lowered.
            It takes a program and its compile specs, and returns a `PreprocessResult`. A backend
            with a function needs no `BackendDetails` class; if it has both, the function is called.
        details: its `BackendDetails` class as `module:Class`, if one is installed.
        joint: whether its class overrides `preprocess_multimethod`, so that it sees all methods at
            once.
        options_apart: returns, given the options of a method's partitioner, whether a joint backend
            preprocesses each method separately, provided the options of all methods agree.
        specs_apart: returns the same, given the compile specs of a partition.
        around: a context in which the function returns the same bytes for the same partition, and
            refuses what its runtime can't run; unnecessary if it does so anyway.
        pass_manager: the class, as `module:Class`, whose `transform` runs passes of the function
            over the program that it was made from, or "". Equal partitions can then share the
            result of the passes.
        make_cache_scope: returns the part of a partition that the function depends on.
        names_count: whether its payloads can depend on the names of a method's values, or of
            modules' classes other than torch's.
        weights_apart: whether its payloads hold no weights, but refer to them as named data by the
            SHA-256 of their bytes, and depend on their values in no other way. New weights can then
            replace the old ones in a lowered method.
        unreproducible: why its bytes differ from run to run nevertheless, or "".
        keeps_constants: whether it is known to write to no constant in place, so that it needs no
            copies of the program's constants.
        names_data: the module, as `module`, whose `NamedDataStore` it puts weights into; they can
            then move from memory to the store at once.
    """

    function: str = ""
    details: str = ""
    joint: bool = False
    options_apart: Callable[[Any], bool] = lambda options: False
    specs_apart: Callable[[Sequence[CompileSpec]], bool] = lambda specs: False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    pass_manager: str = ""
    make_cache_scope: Callable[[], CacheScope] = CacheScope
    names_count: bool = True
    weights_apart: bool = False
    unreproducible: str = ""
    keeps_constants: bool = False
    names_data: str = ""


@dataclass(frozen=True)
class Execution:
    """A backend's way to run its delegates.

    Attributes:
        make_runtime: makes a Python runtime of its delegates, for the interpreter to run what
            ExecuTorch's own runtime can't; imports the backend. None if it has none.
        cannot_run: returns why this machine can't run its packages, or "". None if every machine
            that builds can.
        facts: returns further facts about this machine that can change a run, for the keys of
            validation.
        elsewhere: what runs it if this machine can't, in two or three words.
        check_payload: yields the faults of a delegate without running it. Takes the method that
            calls it, its processed bytes as the `.pte` has them, all named data of the package and
            its `.ptd` files by key, and the sizes of the call's inputs and outputs. None if nothing
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
        name: its name in configs.
        backend_id: the name by which a program calls the delegate.
        summary: its purpose in a few words.
        options: the model of the options of its partitioner or its passes.
        quantization: its quantizer, or None.
        plugin: the distribution that provides it; "" if this package does.
        documented: the address of upstream's documentation, if nothing here lowers to it.
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
                raise ValueError(
                    f"{self.name}: {name} must be `module:name`, not {target!r}"
                )
        if self.preprocessing.function and self.preprocessing.joint:
            raise ValueError(
                f"{self.name}: a preprocess function sees one partition at a time, so this backend "
                "can't be joint"
            )

    @property
    def overridden(self) -> str:
        """A sentence that its preprocess function is called, not its class; "" without both."""
        function, details = self.preprocessing.function, self.preprocessing.details
        if not (function and details):
            return ""
        return f"{self.name} is preprocessed by {function}, not by {details}"

    @property
    def lowers(self) -> bool:
        """Return whether this project or a plugin has code that lowers to the backend."""
        return bool(self.lowering.make_partitioner or self.lowering.make_passes)

    @property
    def asks_machine(self) -> bool:
        """Return whether `machine` can hold facts, requirements, or a reason not to run here."""
        return bool(
            self.host.facts or self.host.requirements or self.execution.cannot_run
        )

    @property
    def device(self) -> str:
        """The device that runs what this machine can't, or ""."""
        return (
            find_device(self.backend_id)
            if self.execution.cannot_run is not None
            else ""
        )

    def explain_not_run(self) -> str:
        """Return why nothing here can run its packages, or ""."""
        cannot_run = self.execution.cannot_run
        return "" if cannot_run is None or self.device else cannot_run()

    @property
    def machine(self) -> dict[str, Any]:
        """Facts about this machine for the backend; keys without a value are left out.

        These are its `facts`, the names of `missing` requirements, why it `cannot_run` here, and
        the facts about what it `runs_with`.
        """
        device = self.device
        run_facts = (
            describe_device(device) if device else _sorted_facts(self.execution.facts)
        )
        values: dict[str, Any] = {
            "facts": _sorted_facts(self.host.facts),
            "missing": [need.what for need in self.host.missing()],
            "cannot_run": self.explain_not_run(),
            "runs_with": run_facts,
        }
        return {name: value for name, value in values.items() if value}


def _sorted_facts(facts: Callable[[], Mapping[str, str]] | None) -> dict[str, str]:
    return {} if facts is None else dict(sorted(facts().items()))
