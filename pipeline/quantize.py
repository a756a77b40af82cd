"""PT2E quantization of a method: annotate, observe, convert, export again.

Source: `torchao.quantization.pt2e` (prepare_pt2e, convert_pt2e) and the quantizers of ExecuTorch's
backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.transforms.duplicate_dynamic_quant_chain import (
    DuplicateDynamicQuantChainPass,
)
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from pipeline.backends import make_quantizer
from pipeline.generate import generate_inputs
from pipeline.inputs import InputSet
from pipeline.signature import bounds, check_inputs, expression, signature


def quantize(
    program: ExportedProgram, spec: Any, calibration: Sequence[InputSet]
) -> ExportedProgram:
    """The quantized program, with the same signature and the same dynamic sizes.

    Args:
        spec: a quantizer and its options, as a config gives them.
        calibration: inputs that the observers see; none for dynamic quantization.
    """
    for inputs in calibration:
        check_inputs(program, inputs)
    tracing = generate_inputs(program, 3, seed=0, examples=calibration)[2]
    module = program.module(check_guards=False)
    batches = calibration or [tracing]  # observers of weights need one run as well
    if spec.backend.apply_quantizer is not None:
        state = {name: buffer.clone() for name, buffer in module.named_buffers()}
        converted = spec.backend.apply_quantizer(module, spec, [each.args for each in batches])
        _restore_state(program, converted, state)
    else:
        converted = _apply_pt2e(program, module, spec, batches)
    move_exported_model_to_eval(converted)
    return torch.export.export(
        converted, tracing.args, tracing.kwargs, dynamic_shapes=_dynamic_shapes(program)
    )


def _apply_pt2e(
    program: ExportedProgram, module: GraphModule, spec: Any, batches: Sequence[InputSet]
) -> GraphModule:
    prepared = prepare_pt2e(module, make_quantizer(spec))
    state = {name: buffer.clone() for name, buffer in prepared.named_buffers()}
    with torch.no_grad():
        for inputs in batches:
            prepared(*inputs.args, **inputs.kwargs)
    _restore_state(program, prepared, state)
    converted = convert_pt2e(prepared)
    if spec.dynamic:
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
    """Gives the method's own mutable buffers the values that calibration changed back; observers
    keep theirs."""
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in mutated:
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
