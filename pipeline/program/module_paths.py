"""Finds a program's sub-modules by qualified name, and the sub-module that each node comes from.

If a module is called more than once, the program holds its nodes once per call. torch is imported
lazily: planning works on an archive's outline without it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_CALL = r"@\d+"
# Strict export identifies a module by its object's id; a second export adds a prefix to the id.
_OBJECT = r"(?:L__self__)*(\d+)"
# torch's placeholder for a node made by a pass (torch/_export/passes/_node_metadata_hook.py).
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_KINDS = {"parameter": "parameter", "buffer": "buffer", "tensor_constant": "constant"}


class Frame(NamedTuple):
    """One module around a node.

    `key` is the key under which torch counts the module's calls (`L__self__act@1`), `path` the
    module's qualified name as torch writes it, and `kind` its class.
    """

    key: str
    path: str
    kind: str

    @property
    def name(self) -> str:
        """The module's qualified name; "" for the method's root module."""
        return re.sub(_CALL, "", self.path).removeprefix("L['self']").removeprefix(".")

    @property
    def call(self) -> int:
        """The number of this call among the module's calls, from 0."""
        marks = re.findall(_CALL, self.key) or re.findall(_CALL, self.path)
        if marks:
            return int(marks[-1][1:])
        return 0


def module_frames(node: Node) -> list[Frame]:
    """Return the modules around a node, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    frames = []
    for key, (path, kind) in stack.items():
        if path == _NO_MODULE:
            continue
        if isinstance(kind, type):
            kind = f"{kind.__module__}.{kind.__qualname__}"
        frames.append(Frame(str(key), path, str(kind)))
    return frames


def parse_frames(stack: str) -> list[Frame]:
    """Return the modules of a serialized stack, `key,name,type;...`, outermost first."""
    frames = []
    for entry in stack.split(";"):
        fields = entry.split(",", 2)
        if len(fields) == 3 and fields[1] != _NO_MODULE:
            frames.append(Frame(*fields))
    return frames


def enclosing_modules(node: Node) -> list[str]:
    """Return the qualified names of the modules around a node, outermost ("", the root) first."""
    return [frame.name for frame in module_frames(node)]


def innermost_module(node: Node) -> str:
    """Return the qualified name of the module that a node comes from; "" for the root module."""
    frames = module_frames(node)
    if frames:
        return frames[-1].name
    return ""


class Outline(NamedTuple):
    """The modules and tensors of a program.

    Attributes:
        calls: the call numbers of each module that is called and computes something.
        same: groups of module names that refer to one object, or share all of their weights.
        modules: the names of all modules, including containers and modules that compute nothing.
        tensors: the kind of each tensor by qualified name: "parameter", "buffer" or "constant".
    """

    calls: Mapping[str, Sequence[int]]
    same: Sequence[Sequence[str]]
    modules: Sequence[str]
    tensors: Mapping[str, str]


def _make_outline(
    frames: Iterable[Frame],
    names: Iterable[str],
    tensors: Mapping[str, str],
    storages: Mapping[str, Any],
) -> Outline:
    """Make the outline of a program.

    Args:
        frames: the modules around all nodes.
        names: the modules that the program lists apart from its nodes.
        tensors: the kind of each tensor, by name.
        storages: the identity of each tensor's storage, by name: equal if two tensors are one.
    """
    calls: dict[str, set[int]] = defaultdict(set)
    objects: dict[str, set[str]] = defaultdict(set)
    kinds: dict[str, str] = {}
    for frame in dict.fromkeys(frames):
        if name := frame.name:
            calls[name].add(frame.call)
            kinds[name] = frame.kind
            # Strict export: one object id, though the module may have several names.
            number = re.fullmatch(_OBJECT, re.sub(_CALL, "", frame.key))
            if number:
                objects[number[1]].add(name)
    modules: set[str] = set()
    for name in (*calls, *names):
        modules.update(_name_and_parents(name))
    groups = [group for group in objects.values() if len(group) > 1]
    groups += _group_by_weights(modules, kinds, storages)
    return Outline(
        calls={name: sorted(numbers) for name, numbers in sorted(calls.items())},
        same=sorted({tuple(sorted(group)) for group in groups}),
        modules=sorted(modules),
        tensors=dict(sorted(tensors.items())),
    )


def _group_by_weights(
    modules: Collection[str], kinds: Mapping[str, str], storages: Mapping[str, Any]
) -> Iterator[set[str]]:
    """Yield groups of modules that hold the same tensors.

    Modules that are called must also have the same class. Modules that aren't called join
    regardless of class, since strict export may know an object by only one of its names.
    """
    tensors_of: dict[str, list[Any]] = defaultdict(list)
    for name, storage in sorted(storages.items()):
        for module in _name_and_parents(name):
            if module in modules:
                tensors_of[module].append((name[len(module) :], storage))
    modules_with: dict[Any, set[str]] = defaultdict(set)
    for module, tensors in tensors_of.items():
        modules_with[tuple(tensors)].add(module)
    for names in modules_with.values():
        for kind in {kinds[name] for name in names if name in kinds}:
            group = {name for name in names if kinds.get(name, kind) == kind}
            if len(group) > 1:
                yield group


def _name_and_parents(name: str) -> Iterator[str]:
    """Yield a qualified name, then the names of its parents, innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def outline_program(program: ExportedProgram) -> Outline:
    """Return the outline of a program in memory."""
    from torch.nn import Parameter

    from pipeline.program.graphs import iter_nodes

    state = program.state_dict
    # Kept in variables, since torch rebuilds these lists on each access.
    buffers = {*state, *program.graph_signature.buffers}
    parameters = set(program.graph_signature.parameters)
    parameters |= {
        name for name, tensor in state.items() if isinstance(tensor, Parameter)
    }
    kinds = {}
    storages = {}
    for name, tensor in {**program.constants, **state}.items():
        if not hasattr(tensor, "untyped_storage"):
            continue
        kinds[name] = "buffer" if name in buffers else "constant"
        if name in parameters:
            kinds[name] = "parameter"
        storages[name] = (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )
    frames: list[Frame] = []
    for node in iter_nodes(program):
        frames += module_frames(node)
    names = [entry.fqn for entry in program.module_call_graph]
    return _make_outline(frames, names, kinds, storages)


def outline_archive(program: Mapping[str, Any], tensors: Mapping[str, Any]) -> Outline:
    """Return the outline of a serialized program (`torch/_export/serde/schema.py`).

    Args:
        tensors: for `weights` and `constants`, the archive's record of each tensor by name.
    """
    module = program["graph_module"]
    kinds: dict[str, str] = {}
    storages: dict[str, Any] = {}
    for folder, records in tensors.items():
        for name, payload in records.items():
            kinds[name] = "buffer" if folder == "weights" else "constant"
            if payload["is_param"]:
                kinds[name] = "parameter"
            place = payload["path_name"][0]
            storages[name] = (folder, place, str(payload["tensor_meta"]))
    kinds.update(_declared_kinds(module["signature"]["input_specs"]))
    names = [call["fqn"] for call in module["module_call_graph"]]
    frames: list[Frame] = []
    for stack in dict.fromkeys(_archive_stacks(module["graph"])):
        frames += parse_frames(stack)
    return _make_outline(frames, names, kinds, storages)


def _declared_kinds(
    input_specs: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, str]]:
    """Yield the name and kind of each tensor in a signature's input specs."""
    for spec in input_specs:
        for kind, value in spec.items():
            if kind in _KINDS:
                yield value[f"{kind}_name"], _KINDS[kind]


def _archive_stacks(graph: Mapping[str, Any]) -> Iterator[str]:
    for node in graph["nodes"]:
        yield node["metadata"].get("nn_module_stack", "")
        for node_input in node["inputs"]:
            if body := node_input["arg"].get("as_graph"):
                yield from _archive_stacks(body["graph"])
