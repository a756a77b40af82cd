"""Counts the multiplications of an operator from its shapes: linears, convolutions, products of
matrices, attention and recurrent layers. What is counted once an element is left out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.operators import base_name

_PRODUCTS = frozenset({"mm", "bmm", "matmul", "mv", "dot", "linalg_matmul"})
_ADDED_PRODUCTS = frozenset({"addmm", "baddbmm", "addbmm", "addmv"})
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})


def count_multiplications(node: Node) -> int:
    """Return how many multiplications a call of an operator takes; 0 for operators that are not
    counted. Dynamic sizes are those that the program was exported with."""
    name, result = base_name(node), _first_tensor(node.meta.get("val"))
    values = [_value(argument) for argument in node.args]
    first = values[0] if values else None
    if result is None or not isinstance(first, Tensor | list | str):
        return 0
    if name == "linear" and isinstance(values[1], Tensor):
        return _numel(result) * _size(values[1].shape[-1])
    if name.startswith(("conv1d", "conv2d", "conv3d", "conv_transpose", "convolution")):
        return _count_convolution(name, values, result)
    if name in _PRODUCTS and isinstance(first, Tensor):
        return _numel(result) * _size(first.shape[-1]) if first.ndim else 0
    if name in _ADDED_PRODUCTS and isinstance(values[1], Tensor):
        return _numel(result) * _size(values[1].shape[-1])
    if name.endswith("scaled_dot_product_attention") and isinstance(values[1], Tensor):
        assert isinstance(first, Tensor)
        return (_numel(first) + _numel(result)) * _size(values[1].shape[-2])
    if name in _RECURRENT and isinstance(first, Tensor):
        steps = _numel(first) // max(_size(first.shape[-1]), 1)
        lists = [value for value in values if isinstance(value, list)]  # state comes before weights
        return steps * _count_matrices(lists[-1] if lists else [])
    if name in _CELLS and isinstance(first, Tensor):
        rows = _size(first.shape[0]) if first.ndim == 2 else 1
        return rows * _count_matrices(values[2:])
    if name == "einsum" and isinstance(first, str):
        return _count_einsum(first, pytree.tree_leaves(values[1]))
    return 0


def _count_convolution(name: str, values: list[Any], result: Tensor) -> int:
    first, weight = values[0], values[1]
    if not isinstance(first, Tensor) or not isinstance(weight, Tensor):
        return 0
    window = math.prod(_size(size) for size in weight.shape[1:])
    transposed = "transpose" in name or (name == "convolution" and values[6] is True)
    return (_numel(first) if transposed else _numel(result)) * window


def _count_matrices(values: list[Any]) -> int:
    """Return the numbers in matrices, among weights and biases."""
    return sum(_numel(v) for v in values if isinstance(v, Tensor) and v.ndim == 2)


def _count_einsum(equation: str, operands: list[Any]) -> int:
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation or len(terms) < 2 or len(terms) != len(operands):
        return 0
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        if isinstance(operand, Tensor):
            sizes |= {letter: _size(s) for letter, s in zip(term, operand.shape, strict=False)}
    return math.prod(sizes.values())


def _value(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.meta.get("val")
    if isinstance(argument, list | tuple):
        return [_value(each) for each in argument]
    return argument


def _first_tensor(value: Any) -> Tensor | None:
    return next((v for v in pytree.tree_leaves(value) if isinstance(v, Tensor)), None)


def _numel(tensor: Tensor) -> int:
    return math.prod(_size(size) for size in tensor.shape)


def _size(size: int | torch.SymInt) -> int:
    """Return a size; a dynamic one as it was exported, or 1 where that is not known."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else 1
    return int(size)
