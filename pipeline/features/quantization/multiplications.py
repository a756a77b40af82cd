"""Counts the multiplications of an operator from its shapes.

Linear layers, convolutions, matrix products, attention and recurrent layers are counted;
elementwise operators are not.
"""

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
    """Return how many multiplications a call of an operator takes, or 0 if it isn't counted.

    Dynamic sizes count with the values that the program was exported with.
    """
    name = base_name(node)
    result = _first_tensor(node.meta.get("val"))
    values = [_value(argument) for argument in node.args]
    first = None
    if values:
        first = values[0]
    if result is None:
        return 0
    if isinstance(first, Tensor):
        return _count_of_tensor(name, first, values, result)
    if name == "einsum" and isinstance(first, str):
        return _count_einsum(first, pytree.tree_leaves(values[1]))
    # Operators whose first argument is a list or an equation take tensors after it.
    if isinstance(first, list | str):
        return _count_of_second(name, values, result)
    return 0


def _count_of_tensor(
    name: str, first: Tensor, values: list[Any], result: Tensor
) -> int:
    if name.startswith(("conv1d", "conv2d", "conv3d", "conv_transpose", "convolution")):
        return _count_convolution(name, values, result)
    if name in _PRODUCTS:
        if not first.ndim:
            return 0
        return _numel(result) * _size(first.shape[-1])
    if name.endswith("scaled_dot_product_attention") and isinstance(values[1], Tensor):
        keys = _size(values[1].shape[-2])
        return (_numel(first) + _numel(result)) * keys
    if name in _RECURRENT:
        steps = _numel(first) // max(_size(first.shape[-1]), 1)
        # State comes before weights.
        lists = [value for value in values if isinstance(value, list)]
        return steps * _count_matrices(lists[-1] if lists else [])
    if name in _CELLS:
        rows = 1
        if first.ndim == 2:
            rows = _size(first.shape[0])
        return rows * _count_matrices(values[2:])
    return _count_of_second(name, values, result)


def _count_of_second(name: str, values: list[Any], result: Tensor) -> int:
    """Count the products with an operator's second argument, whose last dimension is summed."""
    if name != "linear" and name not in _ADDED_PRODUCTS:
        return 0
    if not isinstance(values[1], Tensor):
        return 0
    return _numel(result) * _size(values[1].shape[-1])


def _count_convolution(name: str, values: list[Any], result: Tensor) -> int:
    first = values[0]
    weight = values[1]
    if not isinstance(first, Tensor) or not isinstance(weight, Tensor):
        return 0
    window = math.prod(_size(size) for size in weight.shape[1:])
    is_transposed = "transpose" in name
    if name == "convolution":
        is_transposed = values[6] is True
    # A transposed convolution spreads each input value; an ordinary one gathers each result.
    if is_transposed:
        places = first
    else:
        places = result
    return _numel(places) * window


def _count_matrices(values: list[Any]) -> int:
    """Return the number of elements in the matrices among weights and biases."""
    count = 0
    for value in values:
        if isinstance(value, Tensor) and value.ndim == 2:
            count += _numel(value)
    return count


def _count_einsum(equation: str, operands: list[Any]) -> int:
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation or len(terms) < 2 or len(terms) != len(operands):
        return 0
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        if not isinstance(operand, Tensor):
            continue
        for letter, size in zip(term, operand.shape, strict=False):
            sizes[letter] = _size(size)
    return math.prod(sizes.values())


def _value(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.meta.get("val")
    if isinstance(argument, list | tuple):
        return [_value(element) for element in argument]
    return argument


def _first_tensor(value: Any) -> Tensor | None:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            return leaf
    return None


def _numel(tensor: Tensor) -> int:
    return math.prod(_size(size) for size in tensor.shape)


def _size(size: int | torch.SymInt) -> int:
    """Return a size; for a dynamic one its value at export, or 1 if that isn't known."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    if not size.node.has_hint():
        return 1
    return int(size.node.hint)
