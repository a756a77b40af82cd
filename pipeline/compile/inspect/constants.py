"""Describes the constants of a program: their names, by the digests of their bytes.

A package holds bytes. Which parameter they are is known while a method is compiled: from its
program, from the lowered one, and from what each delegate took over. Where backends lay a tensor
out in another way, the digests of those forms lead to it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from pipeline.program.graphs import called_delegate, iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import base_name
from pipeline.store.digest import Digest, hash_bytes

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_SMALL = 64  # bytes; in smaller ones only the plain form is looked for
# Between a quantized weight and the operator that computes with it.
_BETWEEN = ("quantized_decomposed", "torchao")
_LAYOUTS = ("_to_copy", "clone", "permute", "t", "to", "transpose", "view")
_NORMS = ("native_batch_norm", "_native_batch_norm_legit_no_training")


@dataclass
class _Tensor:
    names: set[str]
    dtype: str
    shape: list[int]
    size: int
    forms: set[Digest] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        given = {name for name in self.names if not _is_made_up(name)}
        return {
            "names": sorted(given or self.names),
            "dtype": self.dtype,
            "shape": self.shape,
            "size": self.size,
            # A mapping, since digests among the values of a result are taken for blobs.
            "forms": dict.fromkeys(sorted(self.forms), 1),
        }


def describe_constants(source: ExportedProgram, lowered: ExportedProgram) -> dict[str, Any]:
    """Describe the constants of a method.

    Args:
        source: as it was given to lowering.
        lowered: in edge dialect, with its delegates.

    Returns:
        `tensors`: by the digest of a tensor's logical bytes its qualified names, dtype, shape,
        size in bytes, and the digests of other forms that it may be stored in. `consumed`: by the
        digest of a delegate's payload, the tensors that it took over, by their numbers in the order
        of those digests. The same programs give the same.
    """
    known: dict[Digest, _Tensor] = {}
    consumed: dict[Digest, set[Digest]] = {}
    seen: dict[int, Digest | None] = {}  # tensors that several of these programs hold

    def add(program: ExportedProgram) -> set[Digest]:
        found = set()
        for name, tensor in _constants(program).values():
            if id(tensor) not in seen:
                seen[id(tensor)] = _add(known, tensor)
            base = seen[id(tensor)]
            if base is not None:
                known[base].names.add(name)
                found.add(base)
        return found

    add(source)
    add(lowered)
    for delegate in _delegates(lowered):
        payload = hash_bytes(delegate.processed_bytes)
        consumed.setdefault(payload, set()).update(add(delegate.original_module))
        for name, tensor in _folded(delegate.original_module):
            base = _add(known, tensor)
            if base is not None:
                known[base].names.add(name)
    places = {base: number for number, base in enumerate(sorted(known))}
    return {
        "tensors": {base: tensor.to_json() for base, tensor in known.items()},
        "consumed": {p: sorted(places[base] for base in own) for p, own in consumed.items()},
    }


def _add(known: dict[Digest, _Tensor], tensor: torch.Tensor) -> Digest | None:
    """Add a tensor; return the digest of its logical bytes, None where it has none of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.device.type == "meta":
        return None
    tensor = tensor.detach().cpu()
    plain = tensor.contiguous()
    base = _digest(plain)
    if base not in known:
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = plain.numel() * plain.element_size()
        forms = {_digest(form) for form in _forms(tensor, plain)} - {base}
        known[base] = _Tensor(set(), dtype, list(tensor.shape), size, forms)
    return base


def _digest(tensor: torch.Tensor) -> Digest:
    flat = tensor.contiguous().reshape(-1)
    return hash_bytes(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def _forms(tensor: torch.Tensor, plain: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor as backends and ExecuTorch's emitter lay it out, in logical order."""
    if plain.numel() * plain.element_size() < _SMALL:
        return
    if not tensor.is_contiguous() and tensor.ndim:  # in the order of its strides, as it is emitted
        order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
        yield tensor.permute(order)
    floating = plain.is_floating_point()
    if floating and plain.dtype != torch.float32:  # XNNPACK computes in float32
        plain = plain.to(torch.float32)
        yield plain
    if plain.ndim == 4:  # weights of convolutions, of depthwise and of transposed ones
        yield plain.permute(0, 2, 3, 1)
        yield plain.permute(1, 2, 3, 0)
    packed = _packed(plain)
    if packed is not None:
        yield packed


def _packed(plain: torch.Tensor) -> torch.Tensor | None:
    """Pack four-bit values, two to a byte, the first one low, raised by 8 (XNNPACK's qc4w)."""
    if plain.dtype != torch.int8 or plain.ndim != 2 or not -8 <= plain.min() <= plain.max() <= 7:
        return None
    if plain.shape[1] % 2:
        plain = torch.nn.functional.pad(plain, (0, 1))
    raised = plain.to(torch.uint8) + 8
    return raised[:, 1::2] << 4 | raised[:, ::2]


def _delegates(program: ExportedProgram) -> Iterator[LoweredBackendModule]:
    return filter(None, map(called_delegate, iter_nodes(program)))


def _constants(program: ExportedProgram) -> dict[Node, tuple[str, torch.Tensor]]:
    """Return the qualified name and the value of each constant by its placeholder."""
    targets = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind in _CONSTANTS and spec.target is not None
    }
    found = {}
    for node in program.graph.find_nodes(op="placeholder"):
        target = targets.get(node.name)
        value = program.state_dict.get(target, program.constants.get(target)) if target else None
        if target and isinstance(value, torch.Tensor):
            found[node] = (_name(target, node), value)
    return found


def _name(target: str, node: Node) -> str:
    """Return a constant's qualified name.

    One that torch made up, such as `_frozen_param0` of a quantized weight, gives way to the module
    that it serves, or the operator, and how: `decoder.fc.weight`.
    """
    if not _is_made_up(target):
        return target
    path: list[str] = []
    while node.users:
        user = min(node.users, key=lambda each: each.name)
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            break
        path.insert(0, _argument(user, node))
        library, _, operation = schema.name.partition("::")
        if library in _BETWEEN or operation in _LAYOUTS:
            path = [part for part in path if part not in ("", "input", "self")]
            node = user
            continue
        return ".".join([innermost_module(user) or operation, *path])
    return target


def _is_made_up(name: str) -> bool:
    """Tell whether torch or torchao made a name up, rather than the model."""
    plain = name.startswith(("_", "lifted_tensor", "c_lifted")) and "." not in name
    return plain or ".parametrizations." in name


def _argument(user: Node, node: Node) -> str:
    """Return the name of an operator's parameter that a node is given for."""
    names = [argument.name for argument in user.target._schema.arguments]
    for name, value in [*zip(names, user.args, strict=False), *user.kwargs.items()]:
        if value is node:
            return str(name)
    return ""


def _folded(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of convolutions and linear layers with a batch norm folded in, and names.

    XNNPACK stores them so (backends/xnnpack/_passes/fuse_batch_norm.py).
    """
    values = _constants(program)
    for node in program.graph.nodes:
        before = node.args[0] if node.args else None
        if base_name(node) not in _NORMS or not isinstance(before, Node):
            continue
        kind = base_name(before)
        if kind not in ("convolution", "linear") or len(before.users) != 1:
            continue
        weight, bias = before.args[1], before.args[2] if len(before.args) > 2 else None
        scale, shift, mean, variance = (_value(values, each) for each in node.args[1:5])
        if weight not in values or mean is None or variance is None:
            continue
        given = (values[weight][1], _value(values, bias), mean, variance, node.args[-1])
        arguments = (*given, scale, shift)
        if kind == "linear":
            fused = fuse_linear_bn_weights(*arguments)
        else:
            fused = fuse_conv_bn_weights(*arguments, before.args[6])
        name = values[weight][0]
        yield name, fused[0]
        if fused[1] is not None:
            own = values[bias][0] if bias in values else f"{name.removesuffix('weight')}bias"
            yield own, fused[1]


def _value(values: Mapping[Node, tuple[str, torch.Tensor]], node: Any) -> torch.Tensor | None:
    return values[node][1] if isinstance(node, Node) and node in values else None
