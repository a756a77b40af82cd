"""Finds tensors of a model that its methods change under different names.

ExecuTorch shares buffers between methods only by name. A cache that one exported module calls
`model.cache` and another `cache` is one tensor in the model but two in the package, and only the
process that exported both can tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

TensorPlace = tuple[int, int, tuple[int, ...]]
User = tuple[str, str]  # the method and its name of the buffer


# The buffers of each method, by name.
Buffers = Mapping[str, Mapping[str, Tensor]]
# The result of `describe_used_buffers` for the program of a method.
Describe = Callable[[str], Mapping[str, Mapping[str, Any]]]


def list_buffers(program: ExportedProgram) -> dict[str, Tensor]:
    """Return the buffers of a program that are tensors with an address, by name."""
    tensors = {**program.constants, **program.state_dict}
    buffers = {}
    for name in program.graph_signature.buffers:
        tensor = tensors.get(name)
        if type(tensor) is Tensor:  # a subclass may have no address
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
    shared = [users for users in _find_tensors(buffers).values() if _is_renamed(users)]
    if not shared:
        return {}
    uses = {method: describe(method) for method in buffers}
    renamed: dict[str, dict[str, int]] = defaultdict(dict)
    for number, users in enumerate(shared):
        used = [(method, name) for method, name in users if name in uses[method]]
        if _is_renamed(used) and any(
            uses[method][name]["changed"] for method, name in used
        ):
            for method, name in used:
                renamed[method][name] = number
    return dict(renamed)


def _find_tensors(buffers: Buffers) -> dict[TensorPlace, list[User]]:
    """Return the methods and names of each tensor that is a buffer."""
    users: dict[TensorPlace, list[User]] = defaultdict(list)
    for method, tensors in buffers.items():
        for name, tensor in tensors.items():
            if start := tensor.data_ptr():  # neither empty nor on the device meta
                users[start, tensor.element_size(), tuple(tensor.shape)].append(
                    (method, name)
                )
    return users


def _is_renamed(users: Sequence[User]) -> bool:
    """Return whether several methods use a tensor, and no name of it is common to all of them."""
    names: dict[str, Collection[str]] = defaultdict(set)
    for method, name in users:
        names[method] = {*names[method], name}
    return len(names) > 1 and not set.intersection(*map(set, names.values()))
