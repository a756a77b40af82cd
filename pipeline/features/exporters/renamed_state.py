"""Finds memory of a model that its methods change under different names, or as different views.

ExecuTorch shares buffers between methods only by name. A cache that one exported module calls
`model.cache` and another `cache` is one tensor in the model but two in the package, and only the
process that exported both can tell. The same applies if one of them is a view of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
from torch import Tensor
from torch.export import ExportedProgram

# The address, the size of an element and the sizes of a tensor, and the strides of its dimensions
# with several values.
TensorPlace = tuple[int, int, tuple[int, ...], tuple[int, ...]]
User = tuple[str, str, TensorPlace]  # the method and its name and view of the buffer

# The buffers of each method, by name.
Buffers = Mapping[str, Mapping[str, Tensor]]
# The result of `describe_used_buffers` for the program of a method.
Describe = Callable[[str], Mapping[str, Mapping[str, Any]]]


def list_buffers(program: ExportedProgram) -> dict[str, Tensor]:
    """Return the buffers that a program uses and that are tensors with an address, by name.

    These include tensors that are no buffers of its module, but may be buffers of another one.
    """
    tensors = {**program.constants, **program.state_dict}
    signature = program.graph_signature
    names = {
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    changed = signature.buffers_to_mutate.values()
    buffers = {}
    for node in program.graph.find_nodes(op="placeholder"):
        name = names.get(node.name, "")
        tensor = tensors.get(name)
        # A subclass may have no address.
        if type(tensor) is Tensor and (node.users or name in changed):
            buffers[name] = tensor
    return buffers


def find_renamed_state(
    buffers: Buffers, describe: Describe
) -> dict[str, dict[str, int]]:
    """Return the changing buffers that methods use under different names.

    At least one of the methods changes the buffer. The result is by method and name, each with a
    number of the tensor.

    Args:
        buffers: the results of `list_buffers`, whose tensors must all be alive, since they are
            identified by their addresses.
        describe: called for every method if a buffer has different names.
    """
    shared = [users for users in _find_tensors(buffers) if _is_renamed(users)]
    if not shared:
        return {}
    uses = {method: describe(method) for method in buffers}
    renamed: dict[str, dict[str, int]] = defaultdict(dict)
    for number, users in enumerate(shared):
        if any(_changes(uses[method], name) for method, name, _ in users):
            for method, name, _ in users:
                renamed[method][name] = number
    return dict(renamed)


def _changes(uses: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return name in uses and bool(uses[name]["changed"])


def _find_tensors(buffers: Buffers) -> list[list[User]]:
    """Return the users of each tensor that is a buffer, together with the users of its views."""
    storages: dict[int, dict[TensorPlace, tuple[Tensor, list[User]]]] = defaultdict(
        dict
    )
    for method, tensors in buffers.items():
        for name, tensor in tensors.items():
            if start := tensor.data_ptr():  # neither empty nor on the device meta
                sizes = tuple(tensor.shape)
                strides = tuple(
                    stride
                    for size, stride in zip(sizes, tensor.stride(), strict=True)
                    if size > 1
                )
                place = start, tensor.element_size(), sizes, strides
                views = storages[tensor.untyped_storage().data_ptr()]
                _, users = views.setdefault(place, (tensor, []))
                users.append((method, name, place))
    all_users = []
    for views in storages.values():
        groups: list[tuple[list[Tensor], list[User]]] = []
        for tensor, users in views.values():
            overlapping = [tensor]
            separate = []
            for tensors_of_group, users_of_group in groups:
                if any(_overlap(tensor, view) for view in tensors_of_group):
                    overlapping += tensors_of_group
                    users = users + users_of_group
                else:
                    separate.append((tensors_of_group, users_of_group))
            groups = [*separate, (overlapping, users)]
        all_users += [users for _, users in groups]
    return all_users


class _ArrayInterface:
    """The memory of a tensor of any dtype and on any device, as numpy describes arrays."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "data": (tensor.data_ptr(), True),
        }


def _overlap(tensor: Tensor, view: Tensor) -> bool:
    """Return whether two tensors share an element. Only addresses are compared, nothing is read."""
    first = numpy.asarray(_ArrayInterface(tensor))
    second = numpy.asarray(_ArrayInterface(view))
    return bool(numpy.shares_memory(first, second))


def _is_renamed(users: Sequence[User]) -> bool:
    """Return whether several methods use a tensor, but none of its names means the same to all."""
    names: dict[str, set[tuple[str, TensorPlace]]] = defaultdict(set)
    for method, name, place in users:
        names[method].add((name, place))
    return len(names) > 1 and not set.intersection(*names.values())
