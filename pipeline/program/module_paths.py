"""Sub-modules by qualified name: which a node is from, which a program has, which a config names.

`decoder.layers.0` names a module, and `decoder.layers` whatever is called below it. A module that
is called more than once stands in the program once for each call; a bare name means one call, so
such a module is named call by call, `shared@0` and `shared@1` in the order of the program, or
`shared@*` for all of them.

Importing it imports no torch: planning works on an archive's outline.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import did_you_mean

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_ALL = "*"
_CALL = re.compile(r"@\d+")
# Strict export knows a module by the number of its object; exported again, that has a prefix.
_OBJECT = re.compile(r"(?:L__self__)*(\d+)")
# What torch writes where a pass made a node (torch/_export/passes/_node_metadata_hook.py).
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_KINDS = {"parameter": "parameter", "buffer": "buffer", "tensor_constant": "constant"}


@dataclass(frozen=True)
class Frame:
    """One module around a node.

    `key` is that under which torch counts the module's calls (`L__self__act@1`), `path` its
    qualified name as torch writes it, `kind` its class.
    """

    key: str
    path: str
    kind: str

    @property
    def name(self) -> str:
        """The qualified name; "" for the method's own module."""
        return _CALL.sub("", self.path).removeprefix("L['self']").removeprefix(".")

    @property
    def call(self) -> int:
        """The number of this call of the module, from 0."""
        marks = _CALL.findall(self.key) or _CALL.findall(self.path)
        return int(marks[-1][1:]) if marks else 0


def module_frames(node: Node) -> list[Frame]:
    """Return the modules around a node, outermost first."""
    frames = []
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        if path != _NO_MODULE:
            if isinstance(kind, type):
                kind = f"{kind.__module__}.{kind.__qualname__}"
            frames.append(Frame(str(key), path, str(kind)))
    return frames


def parse_frames(stack: str) -> list[Frame]:
    """Return the modules of a serialized stack, `key,name,type;...`, outermost first."""
    frames = [each.split(",", 2) for each in stack.split(";")]
    return [Frame(*frame) for frame in frames if len(frame) == 3 and frame[1] != _NO_MODULE]


def enclosing_modules(node: Node) -> list[str]:
    """Return the qualified names of the modules around a node, outermost first, that is ""."""
    return [frame.name for frame in module_frames(node)]


def innermost_module(node: Node) -> str:
    """Return the qualified name of the module that a node is from; "" for the method's own."""
    return (enclosing_modules(node) or [""])[-1]


@dataclass(frozen=True)
class Outline:
    """The modules and tensors of a program.

    Attributes:
        calls: of each module that is called and computes something, the numbers of its calls.
        same: names of modules that are one object, or that share all of their weights.
        modules: all names, also of modules that compute nothing, and of containers.
        tensors: "parameter", "buffer" or "constant", by qualified name.
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
    """Make an outline from the modules around all nodes, the `names` of modules that the program
    lists by themselves, and kinds and storages, equal where tensors are one, of tensors by name."""
    calls: dict[str, set[int]] = defaultdict(set)
    objects: dict[str, set[str]] = defaultdict(set)
    kinds: dict[str, str] = {}
    for frame in frames:
        if frame.name:
            calls[frame.name].add(frame.call)
            kinds[frame.name] = frame.kind
            if known := _OBJECT.fullmatch(_CALL.sub("", frame.key)):
                objects[known[1]].add(frame.name)
    modules = {above for name in (*calls, *names) for above in _upwards(name)}
    same = {tuple(sorted(each)) for each in objects.values() if len(each) > 1}
    same |= {tuple(sorted(each)) for each in _by_weights(modules, kinds, storages)}
    return Outline(
        calls={name: sorted(numbers) for name, numbers in sorted(calls.items())},
        same=sorted(same),
        modules=sorted(modules),
        tensors=dict(sorted(tensors.items())),
    )


def _by_weights(
    modules: Collection[str], kinds: Mapping[str, str], storages: Mapping[str, Any]
) -> Iterator[set[str]]:
    """Yield groups of modules that hold the same tensors: called ones of one class, and those that
    are not called, since strict export may know only one name of an object."""
    held: dict[str, list[Any]] = defaultdict(list)
    for name, storage in sorted(storages.items()):
        for above in _upwards(name):
            if above in modules:
                held[above].append((name[len(above) :], storage))
    alike: dict[Any, set[str]] = defaultdict(set)
    for name, tensors in held.items():
        alike[tuple(tensors)].add(name)
    for names in alike.values():
        for kind in {kinds[name] for name in names if name in kinds}:
            group = {name for name in names if kinds.get(name, kind) == kind}
            if len(group) > 1:
                yield group


def _upwards(name: str) -> Iterator[str]:
    """Yield a qualified name and those of everything around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def outline_program(program: ExportedProgram) -> Outline:
    """Return the outline of a program in memory."""
    from torch.nn import Parameter

    from pipeline.program.graphs import iter_nodes

    held, signature = program.state_dict, program.graph_signature
    parameters = {name for name, tensor in held.items() if isinstance(tensor, Parameter)}
    kinds, storages = {}, {}
    for name, tensor in {**program.constants, **held}.items():
        if hasattr(tensor, "untyped_storage"):
            is_buffer = name in held or name in signature.buffers
            is_parameter = name in parameters or name in signature.parameters
            kinds[name] = "parameter" if is_parameter else "buffer" if is_buffer else "constant"
            place = tensor.untyped_storage()._cdata, tensor.storage_offset()
            storages[name] = (*place, tuple(tensor.shape), tuple(tensor.stride()))
    frames = (frame for node in iter_nodes(program) for frame in module_frames(node))
    return _make_outline(frames, [e.fqn for e in program.module_call_graph], kinds, storages)


def outline_archive(program: Mapping[str, Any], tensors: Mapping[str, Any]) -> Outline:
    """Return the outline of a serialized program (`torch/_export/serde/schema.py`).

    Args:
        tensors: for `weights` and `constants`, the archive's record of each by name, or a digest.
    """
    module = program["graph_module"]
    kinds: dict[str, str] = {}
    storages: dict[str, Any] = {}
    for what, records in tensors.items():
        for name, payload in records.items() if isinstance(records, Mapping) else ():
            other = "buffer" if what == "weights" else "constant"
            kinds[name] = "parameter" if payload.get("is_param") else other
            place = payload.get("path_name", [name])[0]
            storages[name] = (what, place, str(payload.get("tensor_meta")))
    for spec in module["signature"]["input_specs"]:
        for kind, value in spec.items():
            name = value.get(f"{kind}_name") if isinstance(value, Mapping) else None
            if name is not None and kind in _KINDS:
                kinds[name] = _KINDS[kind]
    listed = [str(entry.get("fqn", "")) for entry in module.get("module_call_graph") or ()]
    return _make_outline(_archive_frames(module["graph"]), listed, kinds, storages)


def _archive_frames(graph: Mapping[str, Any]) -> Iterator[Frame]:
    for node in graph["nodes"]:
        yield from parse_frames((node.get("metadata") or {}).get("nn_module_stack", ""))
        for given in node["inputs"]:
            inner = given["arg"].get("as_graph") if isinstance(given["arg"], Mapping) else None
            if inner is not None:
                yield from _archive_frames(inner["graph"])


# Choosing


@dataclass(frozen=True)
class ModuleFilter:
    """Modules by name, as a config or a caller gives them."""

    names: tuple[str, ...]

    def contains(self, node: Node) -> bool:
        """Tell whether a node stands in one of these modules."""
        frames = module_frames(node)
        return any(_matches(frame, *_split(name)) for name in self.names for frame in frames)


def _split(name: str) -> tuple[str, str | None]:
    base, mark, call = name.partition("@")
    return base, call if mark else None


def _matches(frame: Frame, base: str, call: str | None) -> bool:
    if call in (None, _ALL):
        return f"{frame.name}.".startswith(f"{base}.")
    return frame.name == base and str(frame.call) == call


def check_names(names: Sequence[str], outline: Outline) -> Iterator[tuple[str, str]]:
    """Find names that are no module of the outline, or one of several calls without saying which.

    Yields for each what is wrong, and what would be right.
    """
    for name in names:
        base, call = _split(name)
        if base not in outline.modules:
            if base in outline.tensors:
                around = base.rpartition(".")[0]
                hint = f"its module is '{around}'" if around else "it is of the whole program"
                yield f"'{base}' is a {outline.tensors[base]}, not a module", hint
            else:
                known = did_you_mean(base, outline.modules, 10)
                yield f"no module '{base}' in the program", known
        elif not any(each == base or each.startswith(f"{base}.") for each in outline.calls):
            same = [n for group in outline.same if base in group for n in group]
            called = " and ".join(f"'{name}'" for name in same if name in outline.calls)
            known = f"it is called as {called}" if called else did_you_mean(base, outline.calls, 10)
            yield f"of module '{base}' the program computes nothing", known
        else:
            yield from _wrong_calls(name, base, call, names, outline)


def _wrong_calls(
    name: str, base: str, call: str | None, names: Sequence[str], outline: Outline
) -> Iterator[tuple[str, str]]:
    calls = [f"'{base}@{number}'" for number in outline.calls.get(base, ())]
    others = [
        other
        for group in outline.same
        if base in group
        for other in group
        if other in outline.calls and other not in {_split(each)[0] for each in names}
    ]
    if call is not None and not calls:
        yield f"'{name}': module '{base}' is not called itself", f"write '{base}'"
    elif call is not None and call != _ALL and f"'{name}'" not in calls:
        yield f"module '{base}' has no call '@{call}'", f"known: {', '.join(calls)}"
    elif call is None and len(calls) > 1:
        yield (
            f"module '{base}' is called {len(calls)} times, and a bare name means one call",
            f"name {' or '.join([', '.join(calls[:-1]), calls[-1]])}, or '{base}@*' for all",
        )
    elif call is None and others:
        shown = " and ".join(f"'{other}'" for other in others)
        yield (
            f"module '{base}' has all of its weights in common with {shown}, called as well",
            f"name both, or '{base}@0' for this call alone",
        )
