"""Proves a package against the programs that it came from, by running both.

Every method is loaded, its declared inputs and outputs are compared with the source's, and it runs
on real values: the examples and generated input sets, in sequence where it has state. A failure is
data: it fails its method, and the other methods still run.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.errors import PipelineError
from pipeline.inputs import (
    InputSet,
    bounds,
    check_inputs,
    expression,
    flatten,
    generate_inputs,
    signature,
)
from pipeline.metrics import OutputError, compare, json_number, within
from pipeline.runtime import DeclaredTensor, ExecutorchError, Package

_LIMITS = ("atol", "rtol", "min_sqnr", "inputs", "seed", "steps")


class Settings(Protocol):
    """Limits and amounts: an output passes where |a - e| <= atol + rtol |e| everywhere and, with
    `min_sqnr`, its SQNR in dB is at least that. `inputs` sets are generated from `seed`; a method
    with state is called `steps` times in a row."""

    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def min_sqnr(self) -> float | None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...


@dataclass(frozen=True)
class Failure:
    """`inputs` and `output` are empty where the failure is of the whole method."""

    method: str
    what: str
    inputs: str = ""
    output: str = ""

    @property
    def sentence(self) -> str:
        place = ", ".join(part for part in (self.inputs, self.output) if part)
        return f"{self.method}: {place}{place and ': '}{self.what}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One call on the input set `origin`. A method with state runs in sequences, each on a Package
    just opened: `step` counts its calls from 1, `sequence` names it; otherwise 0 and empty."""

    origin: str
    outputs: tuple[OutputError, ...]
    step: int = 0
    sequence: str = ""

    def to_json(self) -> dict[str, Any]:
        outputs = [error.to_json() for error in self.outputs]
        return asdict(self) | {"outputs": outputs}


@dataclass(frozen=True)
class MethodValidation:
    """What became of one method. `kind` is `program`, `constant` or `unknown`; `state` names the
    buffers that it changes; `skipped` the generated input sets on which the source program itself
    fails, and why; `seconds` is the package's running time over all runs."""

    method: str
    kind: str = "program"
    state: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def errors(self) -> list[OutputError]:
        return [error for run in self.runs for error in run.outputs]

    @property
    def max_abs(self) -> float:
        return max((error.max_abs for error in self.errors), default=0.0)

    @property
    def mean_abs(self) -> float:
        return max((error.mean_abs for error in self.errors), default=0.0)

    @property
    def sqnr_db(self) -> float | None:
        """The lowest; None where no output has one."""
        return min((e.sqnr_db for e in self.errors if e.sqnr_db is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "kind": self.kind,
            "ok": self.ok,
            "state": list(self.state),
            "max_abs": json_number(self.max_abs),
            "mean_abs": json_number(self.mean_abs),
            "sqnr_db": json_number(self.sqnr_db),
            "runs": [run.to_json() for run in self.runs],
            "skipped": [{"origin": origin, "reason": reason} for origin, reason in self.skipped],
            "failures": [failure.to_json() for failure in self.failures],
        }


@dataclass(frozen=True)
class Validation:
    """`failures` holds a sentence for each failure, of the package and of its methods."""

    package: str
    methods: tuple[MethodValidation, ...]
    failures: tuple[str, ...]
    settings: Mapping[str, float | None]

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Strict JSON, equal for equal packages but for `seconds`."""
        return {
            "package": self.package,
            "ok": self.ok,
            "failures": list(self.failures),
            "settings": dict(self.settings),
            "methods": [method.to_json() for method in self.methods],
            "worst": {method.method: json_number(method.max_abs) for method in self.methods},
            "seconds": {method.method: method.seconds for method in self.methods},
        }


def validate_package(
    pte: Path,
    ptds: Sequence[Path],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: Settings,
    constant_methods: Mapping[str, object],
) -> Validation:
    """Validates every method that a package should have, and that it has no other.

    The programs are left as they are, state included. What fails is in the result; nothing is
    raised for it.
    """
    limits = {name: getattr(settings, name) for name in _LIMITS}
    try:
        present = Package(pte, ptds).methods()
    except PipelineError as error:
        return Validation(pte.name, (), (str(error),), limits)
    methods = []
    for name in [*programs, *constant_methods]:
        if name not in present:
            what = f"the package lacks this method; it has {', '.join(present) or 'none'}"
            methods.append(MethodValidation(name, failures=(Failure(name, what),)))
        elif name in programs:
            trial = _Trial(name, programs[name], lambda: Package(pte, ptds), settings)
            methods.append(trial.result(examples.get(name, ())))
        else:
            methods.append(_validate_constant(name, constant_methods[name], Package(pte, ptds)))
    for name in present:
        if name not in programs and name not in constant_methods:
            failure = Failure(name, "the package has this method, its source has not")
            methods.append(MethodValidation(name, "unknown", failures=(failure,)))
    sentences = tuple(failure.sentence for method in methods for failure in method.failures)
    return Validation(pte.name, tuple(methods), sentences, limits)


def _validate_constant(method: str, value: object, package: Package) -> MethodValidation:
    """A constant method returns the leaves of its value, exactly."""
    expected = pytree.tree_leaves(value)
    try:
        actual = package.run(method, ())
    except ExecutorchError as error:
        return MethodValidation(method, "constant", failures=(Failure(method, error.reason),))
    errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=False))
    failures = []
    if len(actual) != len(expected) or any(e.mismatch or e.max_abs for e in errors):
        shown = actual[0] if len(actual) == 1 else actual
        failures.append(Failure(method, f"returns {shown}, must return {value}"))
    run = Run("constant", errors)
    return MethodValidation(method, "constant", runs=(run,), failures=tuple(failures))


class _Trial:
    """One method of a package against its source program; collects what comes of it."""

    def __init__(
        self,
        method: str,
        program: ExportedProgram,
        open_package: Callable[[], Package],
        settings: Settings,
    ) -> None:
        self.method = method
        self.program = program
        self.open_package = open_package
        self.settings = settings
        self.state: tuple[str, ...] = ()
        self.examples: list[InputSet] = []
        self.runs: list[Run] = []
        self.skipped: list[tuple[str, str]] = []
        self.failures: list[Failure] = []
        self.seconds = 0.0

    def result(self, examples: Sequence[InputSet]) -> MethodValidation:
        """Where torch fails on the source itself, outside a run, that too is this method's
        failure, with its traceback on stderr."""
        try:
            self._validate(examples)
        except Exception as error:
            traceback.print_exc()
            self._fail(f"validation stopped at {type(error).__name__}: {_first_line(error)}")
        return MethodValidation(
            self.method,
            state=self.state,
            runs=tuple(self.runs),
            skipped=tuple(self.skipped),
            failures=tuple(self.failures),
            seconds=self.seconds,
        )

    def _validate(self, examples: Sequence[InputSet]) -> None:
        self.source = Source(self.program)
        self.state = self.source.state
        self.package = self.open_package()
        if not (self._loads() and self._declares_the_same()):
            return
        sets = self._input_sets(examples)
        if self.state:
            self._run_with_state(sets)
        else:
            for inputs in sets:
                self._call(inputs)
        if not self.runs and not self.failures:
            self._fail("no input set ran: give examples, or have inputs generated")

    def _fail(self, what: str, inputs: str = "", output: str = "") -> None:
        self.failures.append(Failure(self.method, what, inputs, output))

    def _loads(self) -> bool:
        try:
            self.package.load(self.method)
        except ExecutorchError as error:
            self._fail(error.reason)
        return not self.failures

    def _declares_the_same(self) -> bool:
        declared = self.package.declared(self.method)
        inputs = [(f"input '{a.name}'", a.value) for a in signature(self.program)]
        for what in (
            *_differences("input", declared.inputs, inputs, self.program),
            *_differences("output", declared.outputs, self.source.outputs, self.program),
        ):
            self._fail(what)
        return not self.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """The examples that fit the source's signature, then the generated sets."""
        for inputs in examples:
            try:
                check_inputs(self.program, inputs, self.method)
                self.examples.append(inputs)
            except PipelineError as error:
                prefix = f"{self.method}: {inputs.origin}: "
                for line in str(error).splitlines():
                    self._fail(line.removeprefix(prefix), inputs.origin)
        count, seed = self.settings.inputs, self.settings.seed
        return self.examples + generate_inputs(self.program, count, seed, self.examples)

    def _run_with_state(self, sets: Sequence[InputSet]) -> None:
        """A sequence of `steps` calls from each set on, going on with the sets that follow it;
        then the first sequence again. Each begins with the initial state."""
        sequences = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        sequences += [(number, f"{origin}, again") for number, origin in sequences[:1]]
        for number, name in sequences:
            self.package = self.open_package()
            self.source.reset()
            for step in range(self.settings.steps):
                if not self._call(sets[(number + step) % len(sets)], step + 1, name):
                    break

    def _call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Whether both sides ran, so that a sequence can go on."""
        where = f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        try:
            expected = self.source.run(inputs)
        except Exception as error:  # whatever an operator raises
            reason = f"{type(error).__name__}: {_first_line(error)}"
            if inputs in self.examples:
                self._fail(f"the source program itself fails: {reason}", where)
            else:
                self.skipped.append((where, reason))
            return False
        try:
            started = time.perf_counter()
            actual = self.package.run(self.method, flatten(self.program, inputs))
            self.seconds += time.perf_counter() - started
        except ExecutorchError as error:
            self._fail(error.reason, where)
            return False
        self._judge(actual, expected, Run(inputs.origin, (), step, sequence), where)
        return True

    def _judge(self, actual: list[Any], expected: list[Any], run: Run, where: str) -> None:
        errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=True))
        self.runs.append(replace(run, outputs=errors))
        hint = ""
        if run.step == 1 and self.source.nonzero:
            names = ", ".join(self.source.nonzero)
            hint = f"; {names} starts with other values than zeros, which a package holds only"
            hint += " where InitializedMutableBufferPass names the buffer"
        for (name, _), error, a, e in zip(
            self.source.outputs, errors, actual, expected, strict=True
        ):
            for what in _excesses(error, a, e, self.settings):
                self._fail(what + hint, where, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _excesses(error: OutputError, actual: Any, expected: Any, settings: Settings) -> Iterator[str]:
    """What is wrong with an output, each with its figure and its limit."""
    if error.mismatch is not None:
        yield error.mismatch
        return
    worst = within(error, actual, expected, settings.atol, settings.rtol)
    at = f" at {list(worst.index)}" if worst.index else ""
    values = f"({worst.actual:.6g}, must be {worst.expected:.6g})"
    if error.disagreeing:
        count = f"{error.disagreeing} value{'s' if error.disagreeing > 1 else ''}"
        yield f"{count} NaN or infinite on one side only, as{at} {values}"
        return
    if not worst.ok:
        distance = abs(worst.actual - worst.expected)
        yield f"absolute error {distance:.3g}{at} {values} exceeds {worst.allowed:.3g}"
    least = settings.min_sqnr
    if least is not None and error.sqnr_db is not None and error.sqnr_db < least:
        yield f"SQNR {error.sqnr_db:.1f} dB is below {least:g} dB"


def _differences(
    kind: str,
    declared: Sequence[DeclaredTensor | None],
    expected: Sequence[tuple[str, Any]],
    program: ExportedProgram,
) -> Iterator[str]:
    """How a package's declared inputs or outputs differ from the source's, fake values and all."""
    if len(declared) != len(expected):
        yield f"declares {len(declared)} {kind}s, must be {len(expected)}"
        return
    for tensor, (name, value) in zip(declared, expected, strict=True):
        if not isinstance(value, torch.Tensor) or tensor is None:
            if isinstance(value, torch.Tensor) or tensor is not None:
                yield f"{name} is declared as {'no' if tensor is None else 'a'} tensor"
        elif tensor.dtype != value.dtype:
            yield f"{name} is declared with dtype {tensor.dtype}, must be {value.dtype}"
        elif len(tensor.sizes) != value.ndim:
            yield f"{name} is declared with rank {len(tensor.sizes)}, must be {value.ndim}"
        else:
            for dimension, (size, wanted) in enumerate(zip(tensor.sizes, value.shape, strict=True)):
                if what := _size_difference(size, wanted, kind, program):
                    yield f"{name}: {what} at dimension {dimension}"


def _size_difference(
    declared: int, wanted: int | torch.SymInt, kind: str, program: ExportedProgram
) -> str | None:
    """A dynamic size is declared as its upper bound, so a package declares at least the source's;
    an output's follows from the inputs'."""
    if not isinstance(wanted, torch.SymInt):
        return None if declared == wanted else f"declares size {declared}, must be {wanted}"
    greatest = bounds(program, expression(wanted))[1]
    if kind == "output" or (greatest is not None and declared >= greatest):
        return None
    if greatest is not None:
        return f"declares room for size {declared}, the source takes up to {greatest}"
    return (
        f"declares room for size {declared}, the source has no limit: ExecuTorch plans memory for "
        "the size in the example where the export gives no maximum, so give one"
    )


class Source:
    """A source program in eager mode, with state of its own.

    `ExportedProgram.module()` shares its buffers with the program, so a run would change the
    program for whoever uses it next; what the program changes is copied first. `state` names those
    buffers, `nonzero` the ones of them that do not start as zeros. `outputs` holds the name and
    fake value of each output that the runtime returns: the inputs that the method changes in place
    come first, then what it returns.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        functional = _functionalized(program)
        graph_signature = functional.graph_signature
        self.state = tuple(
            spec.target
            for spec in graph_signature.output_specs
            if spec.kind in _STATE and spec.target is not None
        )
        self.outputs, self._changed = _outputs(functional)
        self._module = program.module(check_guards=False)
        self._state = _give_own(self._module, self.state)
        self._initial = [tensor.detach().clone() for tensor in self._state]
        self.nonzero = tuple(
            name
            for name, tensor in zip(self.state, self._initial, strict=True)
            if bool(tensor.any())
        )

    def reset(self) -> None:
        """Back to the initial state."""
        with torch.no_grad():
            for tensor, initial in zip(self._state, self._initial, strict=True):
                tensor.copy_(initial)

    def run(self, inputs: InputSet) -> list[Any]:
        """The flat outputs, as the runtime orders them, none of them sharing memory with the
        state. The input set is left as it is."""
        leaves = flatten(self.program, inputs)
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        with torch.no_grad():
            returned = pytree.tree_leaves(self._module(*args, **kwargs))
        outputs = [leaves[index] for index in self._changed] + returned
        return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in outputs]


_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def _functionalized(program: ExportedProgram) -> ExportedProgram:
    """The program with every change of a buffer or an input as an output in its signature.

    `torch.export.export` leaves `add_` and the like in the graph, and says nothing of them there.
    """
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, GraphModule) else ():
            if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
                return program.run_decompositions({})
    return program


def _outputs(functional: ExportedProgram) -> tuple[list[tuple[str, Any]], list[int]]:
    """Names and fake values of what the runtime returns, and the places of the inputs among it."""
    inputs = functional.graph_signature.input_specs
    placeholders = [spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT]
    arguments = signature(functional)
    out_spec = functional.call_spec.out_spec
    returned = pytree.tree_unflatten(range(out_spec.num_leaves), out_spec)
    paths = iter(pytree.tree_flatten_with_path(returned)[0])
    outputs: list[tuple[str, Any]] = []
    changed: list[int] = []
    nodes = functional.graph.output_node().args[0]
    for spec, node in zip(functional.graph_signature.output_specs, nodes, strict=True):
        value = node.meta["val"] if isinstance(node, Node) else node
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            changed.append(placeholders.index(spec.target))
            outputs.append((f"input '{arguments[changed[-1]].name}' after the call", value))
        elif spec.kind not in _STATE:
            outputs.append((f"output{pytree.keystr(next(paths)[0])}", value))
    return outputs, changed


def _give_own(module: torch.nn.Module, names: Sequence[str]) -> list[torch.Tensor]:
    """Replaces the named tensors of a module by copies. Nothing else shares their memory: torch
    does not decompose a program that changes a buffer with two names or a view beside it."""
    own = []
    for name in names:
        owner, _, attribute = name.rpartition(".")
        parent = module.get_submodule(owner)
        own.append(copy.deepcopy(getattr(parent, attribute)))
        setattr(parent, attribute, own[-1])
    return own
