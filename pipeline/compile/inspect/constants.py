"""Describes the constants of a program: their names, by the digests of their bytes.

A package holds only bytes. Which parameters they are is known while a method is compiled: from its
program, from the lowered program, and from the programs of its delegates.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.compile.inspect.arrays import logical_bytes, look
from pipeline.compile.inspect.forms import find_forms
from pipeline.compile.inspect.storages import note_described, storage_bytes, view_of
from pipeline.moments import call_all
from pipeline.program.constant_tags import iter_constants
from pipeline.program.graphs import called_delegate, iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.store.digest import Digest, hash_bytes

# Operator namespaces, and operations, between a quantized weight and the operator that uses it.
_BETWEEN = ("quantized_decomposed", "torchao")
_LAYOUTS = ("_to_copy", "clone", "permute", "t", "to", "transpose", "view")


def describe_constants(
    source: ExportedProgram, lowered: ExportedProgram
) -> dict[str, Any]:
    """Describe the constants of a method.

    Args:
        source: the method's program before lowering.
        lowered: the method's program in edge dialect, with its delegates.

    Returns:
        `tensors`: by the digest of a tensor's logical bytes, its qualified names, dtype, shape,
        size in bytes, and the digests of other forms that it may be stored in. `consumed`: by the
        digest of a delegate's payload, the tensors that the delegate took over, as sorted indices
        into the sorted digests of `tensors`.
    """
    table = _ConstantTable()
    table.add_program(source)
    table.add_program(lowered)
    consumed: dict[Digest, set[Digest]] = {}
    for delegate in filter(None, map(called_delegate, iter_nodes(lowered))):
        payload = hash_bytes(delegate.processed_bytes)
        digests = table.add_program(delegate.original_module)
        consumed.setdefault(payload, set()).update(digests)
        for computed in call_all("computed_constants", delegate.original_module):
            for name, tensor in computed:
                table.add(name, tensor)
    places = {digest: number for number, digest in enumerate(sorted(table.tensors))}
    numbers = {
        payload: sorted(places[digest] for digest in digests)
        for payload, digests in consumed.items()
    }
    for digest, tensor in table.tensors.items():
        names = table.names[digest]
        tensor["names"] = sorted({n for n in names if not _is_made_up(n)} or names)
    return {"tensors": table.tensors, "consumed": numbers}


class _ConstantTable:
    """The constants of several programs; a constant that programs have in common is held once."""

    def __init__(self) -> None:
        self.tensors: dict[Digest, dict[str, Any]] = {}  # their names are added last
        self.names: dict[Digest, set[str]] = defaultdict(set)
        self._digests: dict[
            int, Digest | None
        ] = {}  # by the id of a tensor that a program holds

    def add_program(self, program: ExportedProgram) -> set[Digest]:
        """Add the constants of a program and return their digests."""
        digests = set()
        for name, tensor in list_constants(program).values():
            if id(tensor) not in self._digests:
                self._digests[id(tensor)] = _add(self.tensors, tensor)
            digest = self._digests[id(tensor)]
            if digest is not None:
                self.names[digest].add(name)
                digests.add(digest)
        return digests

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor that no program holds."""
        digest = _add(self.tensors, tensor)
        if digest is not None:
            self.names[digest].add(name)


def _add(tensors: dict[Digest, dict[str, Any]], tensor: torch.Tensor) -> Digest | None:
    """Add a tensor and return the digest of its logical bytes, or None if it has no such bytes."""
    # Subclasses, such as torchao's, only wrap tensors that have the bytes.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return None
    # A pending conjugation or negation is a flag of the tensor and not in its bytes.
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    view = view_of(tensor)
    values = look(storage_bytes(tensor), view)
    digest = hash_bytes(logical_bytes(values))
    note_described(tensor, digest)
    if digest not in tensors:
        forms = find_forms(view, lambda: values) - {digest}
        tensors[digest] = {
            "names": [],
            "dtype": view.dtype,
            "shape": list(tensor.shape),
            "size": tensor.nbytes,
            "forms": dict.fromkeys(sorted(forms), 1),
        }
    return digest


def list_constants(program: ExportedProgram) -> dict[Node, tuple[str, torch.Tensor]]:
    """Return the qualified name and the value of each constant, keyed by its placeholder."""
    values = {**program.constants, **program.state_dict}
    constants = {}
    for target, node in iter_constants(program):
        value = values.get(target)
        if isinstance(value, torch.Tensor):
            constants[node] = (constant_name(target, node), value)
    return constants


def constant_name(target: str, node: Node) -> str:
    """Return a constant's qualified name, given its target in a signature and its placeholder."""
    # A name that torch made up, such as `_frozen_param0`, is replaced by the module or operator
    # that uses the constant and the parameter that it is passed to: `decoder.fc.weight`.
    if not _is_made_up(target):
        return target
    path: list[str] = []
    while node.users:
        user = min(node.users, key=lambda reader: reader.name)
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            break
        path.insert(0, _argument(user, node))
        library, _, operation = schema.name.partition("::")
        if library not in _BETWEEN and operation not in _LAYOUTS:
            return ".".join([innermost_module(user) or operation, *path])
        path = [part for part in path if part not in ("", "input", "self")]
        node = user
    return target


def _is_made_up(name: str) -> bool:
    """Return whether torch or torchao, not the model, made up a name."""
    plain = name.startswith(("_", "lifted_tensor", "c_lifted")) and "." not in name
    return plain or ".parametrizations." in name


def _argument(user: Node, node: Node) -> str:
    """Return the name of the operator's parameter that a node is passed to, or "" if none."""
    names = [argument.name for argument in user.target._schema.arguments]
    for name, value in zip(names, user.args, strict=False):
        if value is node:
            return str(name)
    for name, value in user.kwargs.items():
        if value is node:
            return str(name)
    return ""
