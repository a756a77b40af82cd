"""Applies torchao's schemes to an exported program, which no longer has `nn.Linear` modules.

The weights of its linear layers are put into new modules, which `quantize_` quantizes and which
then replace the layers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.passes import _quant_patterns_and_replacements  # noqa: F401  (embedding ops)
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
)
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.quant_api import quantize_
from torchao.quantization.quantize_.workflows import IntxUnpackedToInt8Tensor
from torchao.utils import unwrap_tensor_subclass

from pipeline.program.module_paths import enclosing_modules

if TYPE_CHECKING:
    from pipeline.features.torchao.entries import EmbeddingOptions, TorchaoQuantize

_log = logging.getLogger(__name__)


def quantize_weights(
    module: GraphModule, config: TorchaoQuantize, batches: object
) -> GraphModule:
    """Return an ATen module whose linear layers and embeddings compute with quantized weights."""
    number_quantized = 0
    if config.scheme is not None:
        number_quantized += _quantize_linears(module, config)
    if config.embedding is not None:
        number_quantized += _quantize_embeddings(
            module, config.embedding, config.modules
        )
    if not number_quantized:
        _log.warning(
            "torchao quantizes nothing in it: no linear or embedding has a constant weight whose "
            "rows consist of whole groups"
        )
    # Exporting needs plain tensors: each subclass becomes its values and scales.
    unwrap_tensor_subclass(module)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module


class _Linear(torch.nn.Linear):
    """A linear layer with its quantized weight, and the bias that it had in the graph."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, bias)


def _weights(
    module: GraphModule, operator: Any, place: int, left_alone: Mapping[str, Any]
) -> dict[str, list[Node]]:
    """Return the calls of an operator outside some modules, by attribute.

    The attribute is the argument of the call at `place`.
    """
    calls: dict[str, list[Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is operator:
            if not left_alone.keys().isdisjoint(enclosing_modules(node)):
                continue
            weight = node.args[place]
            if isinstance(weight, Node) and weight.op == "get_attr":
                calls.setdefault(str(weight.target), []).append(node)
    return calls


def _linear_config(config: TorchaoQuantize) -> Any:
    scheme = str(config.scheme)
    dynamic = scheme.startswith("int8_dynamic")
    kind = Int8DynamicActivationIntxWeightConfig if dynamic else IntxWeightOnlyConfig
    return kind(
        torch.int4 if "int4" in scheme else torch.int8,
        PerGroup(config.group_size) if config.group_size else PerAxis(0),
        intx_choose_qparams_algorithm=config.algorithm,
    )


def _replace(
    call: Node, op: str, target: Any, args: tuple[Any, ...], kwargs: Any = None
) -> None:
    graph = call.graph
    with graph.inserting_before(call):
        new = graph.create_node(op, target, args, kwargs)
    new.meta = dict(call.meta)
    call.replace_all_uses_with(new)
    graph.erase_node(call)


def _quantize_linears(module: GraphModule, config: TorchaoQuantize) -> int:
    """Quantize linear layers, and return their number.

    Each weight gets a module of its own, since embeddings may share the attribute.
    """
    recipe = _linear_config(config)
    number_quantized = 0
    for target, calls in _weights(
        module, torch.ops.aten.linear.default, 1, config.modules
    ).items():
        weight = attrgetter(target)(module)
        if config.group_size and weight.shape[1] % config.group_size:
            continue
        # On the meta device, since the weight is replaced right away.
        holder = _Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        holder.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        quantize_(torch.nn.Sequential(holder), recipe)
        name = _free_name(module, target)
        module.add_submodule(name, holder)
        for call in calls:
            _replace(
                call, "call_module", name, (call.args[0], *call.args[2:]), call.kwargs
            )
        number_quantized += 1
    return number_quantized


def _free_name(module: GraphModule, target: str) -> str:
    name = target.replace(".", "_") + "_quantized"
    while hasattr(module, name):
        name += "_"
    return name


def _quantize_embeddings(
    module: GraphModule, config: EmbeddingOptions, left_alone: Mapping[str, Any]
) -> int:
    """Quantize embeddings, and return their number.

    Each lookup becomes a call of one of ExecuTorch's quantized kernels, which take a row's values
    and scales and return floats; a byte holds two values of 4 bits.
    """
    least, greatest = -(2 ** (config.bits - 1)), 2 ** (config.bits - 1) - 1
    operators = torch.ops.quantized_decomposed
    dtype, lookup = {
        4: (torch.int4, operators.embedding_4bit.default),
        8: (torch.int8, operators.embedding_byte.default),
    }[config.bits]
    number_quantized = 0
    for target, calls in _weights(
        module, torch.ops.aten.embedding.default, 0, left_alone
    ).items():
        table = attrgetter(target)(module).detach()
        width = table.shape[1]
        if table.dtype is not torch.float32 or width % (config.group_size or 2):
            continue
        group = config.group_size or width
        quantized = IntxUnpackedToInt8Tensor.from_hp(table, (1, group), dtype)
        data, scales = quantized.qdata, quantized.scale.reshape(len(table), -1)
        if config.bits == 4:
            data = torch.ops.quant_fusion._pack_embedding_weight(data, 4)
        name = _free_name(module, target)
        module.register_buffer(name, data)
        module.register_buffer(
            f"{name}_scales", scales.squeeze(1) if group == width else scales
        )
        for call in calls:
            with module.graph.inserting_before(call):
                data_node = module.graph.get_attr(name)
                scales_node = module.graph.get_attr(f"{name}_scales")
            arguments = (data_node, scales_node, None, least, greatest, call.args[1])
            _replace(call, "call_function", lookup, arguments)
        number_quantized += 1
    return number_quantized
