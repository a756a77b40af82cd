"""PT2E quantization of a method: annotate, observe, convert, export again.

Source: `torchao.quantization.pt2e` (prepare_pt2e, convert_pt2e) and the quantizers of ExecuTorch's
backends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from executorch.backends.transforms.duplicate_dynamic_quant_chain import (
    DuplicateDynamicQuantChainPass,
)
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from pipeline.backends import make_quantizer
from pipeline.backends.quantize_options import MixedQuantize
from pipeline.program.graphs import module_names
from pipeline.program.inputs import InputSet
from pipeline.program.operators import modules_of, operator_of
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import as_exported, bounds, expression, signature
from pipeline.store.errors import PipelineError, did_you_mean

Tell = Callable[[int, int], None]
_QUANTIZED = re.compile(r"(quantized_decomposed::|torchao::(de)?quantize_affine)")


def quantize(
    program: ExportedProgram,
    spec: Any,
    calibration: Sequence[InputSet],
    tell: Tell = lambda done, total: None,
) -> ExportedProgram:
    """The quantized program, with the same signature and the same dynamic sizes.

    Args:
        spec: a quantizer and its options, as a config gives them.
        calibration: inputs that the observers see and that the program takes; none for dynamic
            quantization. They may be read anew each time they are gone through.
        tell: is called with how many of the inputs were observed.

    Raises:
        PipelineError: the program is quantized already, or an override of the config is for
            nothing that is in it.
    """
    _refuse_quantized(program)
    check_overrides(program, spec)
    first = list(calibration[:1] if isinstance(calibration, list) else islice(calibration, 1))
    tracing = generate_inputs(program, 3, seed=0, examples=first)[2]
    if spec.entry.rewrite is not None:
        converted = spec.entry.rewrite(program, spec)
    else:
        batches = calibration if first else [tracing]  # observers of weights need one run as well
        module = program.module(check_guards=False)
        if spec.entry.apply_quantizer is not None:
            state = {name: buffer.clone() for name, buffer in module.named_buffers()}
            converted = spec.entry.apply_quantizer(module, spec, _Arguments(program, batches, tell))
            _restore_state(program, module, state)
            _restore_state(program, converted, state)
        else:
            converted = _apply_pt2e(program, module, spec, batches, tell)
    move_exported_model_to_eval(converted)
    return torch.export.export(
        converted, tracing.args, tracing.kwargs, dynamic_shapes=_dynamic_shapes(program)
    )


class _Arguments(Sequence[tuple[Any, ...]]):
    """The positional arguments of batches, each told of when it is taken."""

    def __init__(self, program: ExportedProgram, batches: Sequence[InputSet], tell: Tell) -> None:
        self._program = program
        self._batches = batches
        self._tell = tell

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        found = self._batches[index]
        if isinstance(index, slice):
            return [as_exported(self._program, each).args for each in found]
        return as_exported(self._program, found).args

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for inputs in _told(self._program, self._batches, self._tell):
            yield inputs.args


def _told(program: ExportedProgram, batches: Sequence[InputSet], tell: Tell) -> Iterator[InputSet]:
    """In the layout that a runtime reads: in another one, sums round otherwise."""
    for done, inputs in enumerate(batches, 1):
        yield as_exported(program, inputs)
        tell(done, len(batches))


def _refuse_quantized(program: ExportedProgram) -> None:
    found = [n for n in _calls(program.graph_module) if _QUANTIZED.match(_operator(n))]
    if found:
        raise PipelineError(
            f"it is quantized already (it holds {_operator(found[0])}); leave out `quantize` to "
            "lower it as it is"
        )


def _calls(module: GraphModule) -> Iterator[Node]:
    for graph in (m.graph for m in module.modules() if isinstance(m, GraphModule)):
        yield from (node for node in graph.nodes if node.op == "call_function")


def _operator(node: Node) -> str:
    return node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""


def check_overrides(program: ExportedProgram, spec: Any) -> None:
    """Raises PipelineError for overrides of modules and operators that are not in the program."""
    if not isinstance(spec, MixedQuantize):
        return
    modules = module_names(program)
    operators = {operator_of(node) for node in _calls(program.graph_module)}
    mistakes = [
        f"no module '{name}' in the program; {did_you_mean(name, modules, 10)}"
        for name in spec.overrides("modules")
        if name not in modules
    ] + [
        f"no operator '{name}' in the program; leave its override out"
        for name in spec.overrides("operators")
        if name not in operators
    ]
    if mistakes:
        raise PipelineError("\n".join(mistakes))


def _check_annotated(module: GraphModule, spec: Any) -> None:
    """Raises PipelineError for an override that asks to quantize where the quantizer did not."""
    if not isinstance(spec, MixedQuantize):
        return
    for name, scheme in spec.overrides("modules").items():
        inside = [node for node in _calls(module) if name in modules_of(node)]
        if scheme is not None and not any("quantization_annotation" in n.meta for n in inside):
            kinds = ", ".join(sorted({_operator(node) for node in inside} - {""}))
            raise PipelineError(
                f"module '{name}' has nothing that {spec.quantizer} quantizes so; it has {kinds}"
            )


def _apply_pt2e(
    program: ExportedProgram,
    module: GraphModule,
    spec: Any,
    batches: Sequence[InputSet],
    tell: Tell,
) -> GraphModule:
    prepared = prepare_pt2e(module, make_quantizer(spec))
    _check_annotated(prepared, spec)
    state = {name: buffer.clone() for name, buffer in prepared.named_buffers()}
    with torch.no_grad():
        for inputs in _told(program, batches, tell):
            prepared(*inputs.args, **inputs.kwargs)
    _restore_state(program, prepared, state)
    converted = convert_pt2e(prepared)
    if spec.quantizes_as_it_comes:
        _unshare_dynamic_quantization(converted)
    return converted


def _unshare_dynamic_quantization(module: GraphModule) -> None:
    """Gives each user of a dynamically quantized tensor a quantization of its own. Otherwise
    partitions that read one tensor in turns, as the layers of a decoder read the encoder's memory,
    depend on each other in a circle, and lowering ends in "found dependency cycles"
    (https://github.com/pytorch/executorch/pull/18397). ExecuTorch's own LLM export does the same.
    """
    DuplicateDynamicQuantChainPass()(module)


def _restore_state(
    program: ExportedProgram, module: torch.nn.Module, state: dict[str, torch.Tensor]
) -> None:
    """Gives the method's own buffers the values that calibration changed back; observers keep
    theirs. `buffers_to_mutate` does not tell which: it is empty until a program is functional, and
    what `torch.export` gives is not. The module's buffers are the program's."""
    own = set(program.graph_signature.buffers)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in own and buffer.shape == state[name].shape:
                buffer.copy_(state[name])


def _dynamic_shapes(program: ExportedProgram) -> tuple[Any, ...] | None:
    """The dynamic sizes of a program in the form that `torch.export.export` takes, one entry for
    each argument. Which of them are equal, the export finds again."""
    leaves = [_dimensions(program, argument.value) for argument in signature(program)]
    if not any(leaves):
        return None
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return (*args, *kwargs.values())


def _dimensions(program: ExportedProgram, value: Any) -> dict[int, Any] | None:
    if not isinstance(value, torch.Tensor):
        return Dim.AUTO if isinstance(value, torch.SymInt) else None
    dynamic = {}
    for dimension, size in enumerate(value.shape):
        if isinstance(size, torch.SymInt):
            least, greatest = bounds(program, expression(size))
            dynamic[dimension] = Dim.AUTO(min=least, max=greatest)
    return dynamic or None
