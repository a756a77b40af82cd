"""Quantizes a method with torchao's PT2E: annotates, observes inputs, converts, exports again."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from executorch.backends.transforms.duplicate_dynamic_quant_chain import (
    DuplicateDynamicQuantChainPass,
)
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from pipeline.backends import QUANTIZERS, make_quantizer
from pipeline.backends.quantize_options import MixedQuantize
from pipeline.features.quantization.divergence import rounds_values, run_unobserved
from pipeline.features.quantization.dynamic_shapes import describe_dynamic_shapes
from pipeline.features.quantization.memory import releasing_floats
from pipeline.features.quantization.observers import ObserverRanges
from pipeline.features.quantization.prepared import ComparisonAttempt, seeded
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import enclosing_modules, outline_program
from pipeline.program.operators import base_name, operator_name
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import as_exported, check_inputs, flatten
from pipeline.store.errors import PipelineError, did_you_mean

_log = logging.getLogger(__name__)
Report = Callable[[int, int], None]
Step = Callable[[str], AbstractContextManager[None]]
# Steps. In `OBSERVE`, observers see inputs; `RANGES` reads the ranges they chose; `COMPARE` runs
# the float program on the observed inputs.
PREPARE, OBSERVE, RANGES = "prepare", "observe", "observed ranges"
COMPARE, CONVERT, EXPORT = "compare with float", "convert", "export again"
_QUANTIZED = re.compile(r"(quantized_decomposed\.|torchao\.(de)?quantize_affine)")


class Batches:
    """Calibration inputs that are read again for each pass, one record or file at a time.

    Args:
        loads: functions, each of which returns the next input sets.
        limit: the maximum number of input sets.
    """

    def __init__(
        self,
        loads: Iterable[Callable[[], Sequence[InputSet]]],
        limit: int | None = None,
    ) -> None:
        self._loads = tuple(loads)
        self._limit = limit

    def __iter__(self) -> Iterator[InputSet]:
        yield from islice(
            (inputs for load in self._loads for inputs in load()), self._limit
        )

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return sum(1 for _ in self)


Calibration = Batches | Sequence[InputSet]


def check_batches(program: ExportedProgram, method: str, batches: Calibration) -> None:
    """Raise PipelineError if a program doesn't accept the calibration inputs, or there are none."""
    inputs = None
    for inputs in batches:
        check_inputs(program, inputs, method)
    if inputs is None:
        raise PipelineError(f"{method}: there are no calibration inputs")


class QuantizationNotes:
    """Facts recorded while a method is quantized, as JSON.

    Both are None for a quantizer that prepares nothing.

    Attributes:
        prepared: how well the prepared module agrees with the float program
            (`PreparedComparison.judge`).
        observers: what observers saw (`ObserverRanges.to_json`).
    """

    def __init__(self) -> None:
        self.prepared: dict[str, Any] | None = None
        self.observers: dict[str, Any] | None = None


def quantize(
    program: ExportedProgram,
    spec: Any,
    calibration: Calibration,
    report: Report = lambda count, total: None,
    notes: QuantizationNotes | None = None,
    step: Step = lambda name: nullcontext(),
) -> ExportedProgram:
    """Quantize a program; its signature and its dynamic sizes stay the same.

    Args:
        spec: a quantizer and its options, as a config gives them.
        calibration: inputs for the observers; empty for dynamic quantization.
        report: called with the number of inputs observed so far, and their total.
        notes: filled in if given. The float program then runs on the same inputs.
        step: returns a context in which the step of this name runs and is timed.

    Raises:
        PipelineError: the program lacks a module or operator that an override names.
    """
    _warn_of_quantized(program)
    _check_overrides(program, spec)
    first = list(islice(calibration, 1))
    tracing = generate_inputs(program, 3, seed=0, examples=first)[2]
    entry = QUANTIZERS[spec.quantizer]
    # Observers of weights need one run as well.
    batches = calibration if first else [tracing]
    observed = _Observed(program, batches, report, step)
    module = program.module(check_guards=False)
    if entry.apply_quantizer is not None:
        state = _copy_state(program, module)
        with step(CONVERT), releasing_floats():
            converted = entry.apply_quantizer(
                module, spec, replace(observed, positional=True)
            )
        _restore_state(module, state)
        _restore_state(converted, state)
    else:
        converted = _apply_pt2e(program, module, spec, observed, notes)
    move_exported_model_to_eval(converted)
    call = as_exported(program, tracing)
    with step(EXPORT), _naming_node(converted, call):
        quantized = torch.export.export(
            converted,
            call.args,
            call.kwargs,
            dynamic_shapes=describe_dynamic_shapes(program),
        )
    # Facts recorded by its export, such as the patches that its lowering needs.
    if custom := program.graph_module.meta.get("custom"):
        quantized.graph_module.meta["custom"] = custom
    return quantized


@contextmanager
def _naming_node(module: GraphModule, call: Any) -> Iterator[None]:
    """Raise the error of a failing graph again, from the node that fails.

    Generated code hides this node, and a message with the line of the model needs it.
    """
    try:
        yield
    except Exception as error:
        try:
            with torch.no_grad():
                Interpreter(module).run(*pytree.tree_leaves((call.args, call.kwargs)))
        except type(error):
            raise
        except Exception:
            _log.debug("the graph fails otherwise node by node", exc_info=True)
        raise error


@dataclass(frozen=True)
class _Observed:
    """Inputs, or only their positional arguments, each reported once it was observed.

    They are in the layout that a runtime reads, because sums round differently in other layouts.
    """

    program: ExportedProgram
    batches: Calibration
    report: Report
    step: Step
    positional: bool = False

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for count, inputs in enumerate(self.batches, 1):
            exported_inputs = as_exported(self.program, inputs)
            yield exported_inputs.args if self.positional else exported_inputs
            self.report(count, len(self))


def _warn_of_quantized(program: ExportedProgram) -> None:
    operator = next(
        filter(_QUANTIZED.match, map(operator_name, _calls(program.graph_module))), None
    )
    if operator is not None:
        _log.warning(
            "it is quantized already, in part or whole (it holds %s); leave out `quantize` to "
            "lower it unchanged",
            operator,
        )


def _calls(module: GraphModule) -> Iterator[Node]:
    for submodule in module.modules():
        if isinstance(submodule, GraphModule):
            yield from (
                node for node in submodule.graph.nodes if node.op == "call_function"
            )


def _check_overrides(program: ExportedProgram, spec: Any) -> None:
    """Raise PipelineError if the program lacks modules or operators that overrides name."""
    if not hasattr(spec, "modules"):
        return
    modules = outline_program(program).calls
    operators = {base_name(node) for node in _calls(program.graph_module)}
    wrong = [
        f"no module '{name}' in the program; {did_you_mean(name, modules, 10)}"
        for name in spec.modules
        if name not in modules
    ] + [
        f"no operator '{name}' in the program; leave its override out"
        for name in getattr(spec, "operators", ())
        if name not in operators
    ]
    if wrong:
        raise PipelineError(*wrong)


def _check_annotated(module: GraphModule, spec: Any) -> None:
    """Raise PipelineError if the quantizer finds nothing in a module that an override names.

    Overrides that leave a module in floating point don't count.
    """
    if not isinstance(spec, MixedQuantize):
        return
    for name, scheme in spec.overrides("modules").items():
        inside = [node for node in _calls(module) if name in enclosing_modules(node)]
        if scheme is not None and not any(
            "quantization_annotation" in n.meta for n in inside
        ):
            kinds = ", ".join(sorted({operator_name(node) for node in inside} - {""}))
            raise PipelineError(
                f"module '{name}' has no operators that {spec.quantizer} quantizes with these "
                f"options; it has {kinds}"
            )


def _apply_pt2e(
    program: ExportedProgram,
    module: GraphModule,
    spec: Any,
    observed: _Observed,
    notes: QuantizationNotes | None,
) -> GraphModule:
    with observed.step(PREPARE):
        prepared = prepare_pt2e(module, make_quantizer(spec))
    _check_annotated(prepared, spec)
    state = _copy_state(program, prepared)
    _observe(program, prepared, observed, state, notes)
    with observed.step(CONVERT):
        converted = convert_pt2e(prepared)
    # Constant folding executes everything that no input reaches, including in-place updates, so a
    # counter has advanced.
    _restore_state(converted, state)
    if any(getattr(scheme, "dynamic", spec.dynamic) for scheme in spec.schemes()):
        # Quantize each user of a tensor separately, as in ExecuTorch's own LLM export. Otherwise
        # partitions that take turns reading one tensor, as the layers of a decoder read the
        # encoder's memory, depend on each other in a cycle, and lowering fails with "found
        # dependency cycles" (https://github.com/pytorch/executorch/pull/18397).
        DuplicateDynamicQuantChainPass()(converted)
    return converted


def _observe(
    program: ExportedProgram,
    prepared: GraphModule,
    observed: _Observed,
    state: dict[str, torch.Tensor],
    notes: QuantizationNotes | None,
) -> None:
    """Let a prepared module observe inputs, and compare it with the float program for the notes."""
    comparison = None
    if notes:
        comparison = ComparisonAttempt(program)
    # A module that rounds while it observes is compared in separate runs without observers.
    if rounds_values(prepared):
        at_once = None
    else:
        at_once = comparison
    with (
        torch.no_grad(),
        ObserverRanges(prepared) as ranges,
        _explain_nonfinite(ranges),
    ):
        for number, inputs in enumerate(observed):
            if at_once:
                with observed.step(COMPARE):
                    at_once.expect(inputs)
            with (
                observed.step(OBSERVE),
                seeded(number),
                _naming_node(prepared, inputs),
            ):
                returned = prepared(*inputs.args, **inputs.kwargs)
            if at_once:
                with observed.step(COMPARE):
                    at_once.add(inputs, returned)
    _restore_state(prepared, state)
    if notes and comparison:
        if not at_once:
            with observed.step(COMPARE):
                _compare_apart(program, prepared, observed, comparison)
            _restore_state(prepared, state)
        with observed.step(RANGES):
            notes.observers = ranges.to_json()
        with observed.step(COMPARE):
            notes.prepared = comparison.judge(prepared)
        _restore_state(prepared, state)


def _compare_apart(
    program: ExportedProgram,
    prepared: GraphModule,
    observed: _Observed,
    comparison: ComparisonAttempt,
) -> None:
    """Compare a prepared module, without its observers, on the inputs that it has observed."""
    with torch.no_grad():
        for number, inputs in enumerate(
            replace(observed, report=lambda count, total: None)
        ):
            comparison.expect(inputs)
            with seeded(number):
                returned = run_unobserved(prepared, flatten(program, inputs))
            comparison.add(inputs, returned)


@contextmanager
def _explain_nonfinite(ranges: ObserverRanges) -> Iterator[None]:
    """Raise PipelineError if an observer fails on NaN, which no range covers."""
    try:
        yield
    except RuntimeError as error:
        if "not finite" not in str(error) or not (value := ranges.first_nonfinite()):
            raise
        raise PipelineError(
            f"{value} is infinite or NaN on the calibration inputs, so no range can be observed; "
            "remove such inputs, or fix the method"
        ) from error


def _copy_state(
    program: ExportedProgram, module: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Return copies of the method's own buffers, by name, without observers' buffers."""
    # `buffers_to_mutate` doesn't name the method's own buffers: it is empty until a program is
    # functional, and programs from `torch.export` are not.
    buffer_names = set(program.graph_signature.buffers)
    return {
        name: buffer.clone()
        for name, buffer in _buffers(module)
        if name in buffer_names
    }


def _restore_state(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Restore the values of the method's own buffers that quantizing changed."""
    with torch.no_grad():
        for name, buffer in _buffers(module):
            if name in state and buffer.shape == state[name].shape:
                buffer.copy_(state[name])


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return all buffers, shared ones under each of their names: quantizing keeps any of them."""
    return module.named_buffers(remove_duplicate=False)
