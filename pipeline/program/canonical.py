"""Computes the canonical form of a serialized program, from which its digest is computed.

This works on the JSON of a PT2 archive (`torch/_export/serde/schema.py`), without torch. A second
export of the same model can give its values other names and its symbols other numbers. The
canonical form numbers values in graph order, and symbols and users' classes by first use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from pipeline.program.module_paths import parse_frames
from pipeline.store import digest

# Node metadata that holds object ids, machine paths and line numbers. Lowering reads one fact from
# it: which nodes come from the same node of the first graph. They get the same debug handle, which
# a payload may hold, so that fact is kept as `ancestor`. The names in `from_node` are kept with the
# names of values. Partitioners and quantizers read the other metadata (nn_module_stack,
# source_fn_stack, torch_fn), for instance through get_source_partitions, so it belongs to the
# program.
VOLATILE_METADATA = frozenset({"from_node", "stack_trace"})
# XNNPACK derives the names of weights with folded batch norm from the old names, and makes no
# weight whose name is taken. So if a program already has such names, they stay in its digest.
_FUSED = re.compile(r"_(fused|decomposed)_bn")
# In a stack of modules, `key,name,type;...`, strict export writes as key the id of an object, which
# differs between processes, and `id@1` for the second call of a module.
_OBJECT = re.compile(r"(?:(?<=;)|^)\d+(?=(?:@\d+)?,)")
# Nodes of strict export come from nodes that call Python functions, whose text has an address.
_ADDRESS = re.compile(" at 0x[0-9a-f]+(?=>)")
# The type in a stack is a class with its module, and so contains the name of the exporter's file.
# Only ExecuTorch, torch and this package read it, and only to compare it with torch's classes or
# with other types in the same program. So all classes from elsewhere are numbered.
_TYPE = re.compile(r"(?<=,)[^,;]*+(?=;|\Z)")
_TOOLCHAIN = ("torch.", "torchao.", "executorch.")
_SYMBOL = re.compile(r"(?<=Symbol\(')\w+(?=')")


@dataclass(frozen=True)
class Canonical:
    """The canonical form of a program.

    Attributes:
        text: the program as canonical JSON.
        module: the fields of its graph module as canonical JSON.
        names: the names that the canonical form leaves out, in the order of that form.
        modules: a short digest of each sub-module's operators and their settings, for reports.
    """

    program: dict[str, Any]
    text: bytes
    module: dict[str, bytes]
    names: list[Any]
    modules: dict[str, str]


def canonical_program(program: Mapping[str, Any]) -> Canonical:
    """Return the canonical form of a program's JSON.

    Raises KeyError, TypeError, AttributeError or ValueError if the JSON isn't a program.
    """
    scope = _Scope()
    module = dict(program["graph_module"])
    module["graph"] = scope.graph(module["graph"])
    module["signature"] = scope.renamed(module["signature"])
    canonical = {**program, "graph_module": module}
    canonical.pop("torch_version", None)
    fused_names = [
        [n, name] for n, name in enumerate(scope.names) if _FUSED.search(name)
    ]
    if fused_names:
        canonical["names"] = fused_names
    modules = {path: _short_digest(nodes) for path, nodes in scope.operators.items()}
    names = [*scope.names, scope.origins, list(scope.classes)]
    text, fields = _encode(canonical)
    # A program of fixed sizes has no symbols, and renaming takes long.
    if b'"expr_str"' in text:
        canonical = _with_numbered_symbols(canonical)
        text, fields = _encode(canonical)
    return Canonical(canonical, text, fields, names, modules)


def _encode(program: Mapping[str, Any]) -> tuple[bytes, dict[str, bytes]]:
    """Return a program as canonical JSON, and the fields of its graph module, encoded once."""
    module, fields = (
        {name: digest.canonical_json(value) for name, value in record.items()}
        for record in (program["graph_module"], {**program, "graph_module": None})
    )
    fields["graph_module"] = digest.join_fields(module)
    return digest.join_fields(fields), module


class _Scope:
    """The numbers of one graph's values, and the tables of the whole program.

    Each control-flow graph has a separate scope that shares the program's tables.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.origins: list[Any] = []
        self.ancestors: dict[tuple[Any, Any], int] = {}
        self.operators: dict[str, list[Any]] = {}
        self.objects: dict[str, str] = {}
        self.classes: dict[str, str] = {}
        self.numbers: dict[str, int] = {}

    def graph(self, graph: Mapping[str, Any]) -> dict[str, Any]:
        """Return the graph with its values numbered in the order of inputs and nodes."""
        canonical = {**graph, "inputs": self.renamed(graph["inputs"])}
        canonical["nodes"] = [self._node(node) for node in graph["nodes"]]
        canonical["outputs"] = self.renamed(graph["outputs"])
        for kind in ("tensor", "sym_int", "sym_float", "sym_bool", "custom_obj"):
            key = f"{kind}_values"
            values = graph.get(key) or {}
            canonical[key] = sorted(
                [self._number(name), value] for name, value in values.items()
            )
        return canonical

    def _node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        canonical = dict(node)
        canonical.pop("name", None)
        canonical["inputs"] = [
            {**i, "arg": self.renamed(i["arg"])} for i in node["inputs"]
        ]
        canonical["outputs"] = self.renamed(node["outputs"])
        canonical["metadata"] = self._metadata(node["metadata"])
        settings = [
            _map_texts(i["arg"], _drop_name, lambda _: None) for i in node["inputs"]
        ]
        frames = parse_frames(canonical["metadata"].get("nn_module_stack", ""))
        path = frames[-1].path if frames else ""
        self.operators.setdefault(path, []).append([node["target"], settings])
        return canonical

    def _metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        stable = {
            key: value
            for key, value in metadata.items()
            if key not in VOLATILE_METADATA
        }
        if "nn_module_stack" in stable:
            stack = _OBJECT.sub(self._object, stable["nn_module_stack"])
            stable["nn_module_stack"] = _TYPE.sub(self._type, stack)
        stable["ancestor"] = self._ancestor(metadata.get("from_node"))
        return stable

    def _ancestor(self, origins: str | None) -> int:
        """Return the number of a node's ancestor: its origin in the first graph, or the node.

        The ancestor is found as in exir/debug_handle_utils.py.
        """
        names = []
        ancestor: tuple[Any, Any] = (len(self.origins), None)
        sources = json.loads(_ADDRESS.sub("", origins or "[]"))
        while sources:
            source = sources[-1]
            names.append([source["name"], source["target"]])
            ancestor = (source["name"], source["graph_id"])
            sources = source.get("from_node")
        self.origins.append(names)
        return self.ancestors.setdefault(ancestor, len(self.ancestors))

    def _object(self, match: re.Match[str]) -> str:
        return self.objects.setdefault(match[0], f"object {len(self.objects)}")

    def _type(self, match: re.Match[str]) -> str:
        name = match[0]
        if "." not in name or name.startswith(_TOOLCHAIN):
            return name
        # The dot keeps these apart from the undotted names that are returned unchanged.
        return self.classes.setdefault(name, f"class.{len(self.classes)}")

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers)
            self.names.append(name)
        return self.numbers[name]

    def renamed(self, value: Any) -> Any:
        """Return an argument with the names of values replaced by their numbers."""

        def number(key: str, text: str, owner: Mapping[str, Any]) -> Any:
            return self._number(text) if _is_name(key, owner) else text

        def canonicalize(argument: Mapping[str, Any]) -> Any:
            self.names.append(argument["name"])
            scope = copy(self)
            scope.numbers = {}
            return {"graph": scope.graph(argument["graph"])}

        return _map_texts(value, number, canonicalize)


def _map_texts(
    value: Any,
    replace_text: Callable[[str, str, Mapping[str, Any]], Any],
    replace_graph: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Any:
    """Return a JSON value with its strings replaced, visited in the order of their keys.

    Args:
        replace_text: called with a string's key, the string, and the mapping that holds both.
        replace_graph: called with each graph argument; by default graphs are mapped like the rest.
    """
    if isinstance(value, list):
        return [_map_texts(element, replace_text, replace_graph) for element in value]
    if not isinstance(value, dict):
        return value
    if replace_graph is not None and "graph" in value and "name" in value:
        return replace_graph(value)
    mapped = {}
    for key in sorted(value) if len(value) > 1 else value:  # most have one key
        element = value[key]
        if isinstance(element, str):
            mapped[key] = replace_text(key, element, value)
        else:
            mapped[key] = _map_texts(element, replace_text, replace_graph)
    return mapped


def _is_name(key: str, owner: Mapping[str, Any]) -> bool:
    """Return whether the string under this key names a value of the graph."""
    # A TensorArgument or TokenArgument has only a name; a CustomObjArgument also has a class.
    if key == "name":
        return len(owner) == 1 or "class_fqn" in owner
    return key in ("as_name", "user_input_name")


def _drop_name(key: str, text: str, owner: Mapping[str, Any]) -> str | None:
    return None if _is_name(key, owner) else text


def _with_numbered_symbols(program: dict[str, Any]) -> dict[str, Any]:
    """Number symbols by first use in the graph; symbols that no graph uses keep their names."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"symbol {len(numbers)}")

    def renumber(key: str, text: str, _: Mapping[str, Any]) -> str:
        return _SYMBOL.sub(number, text) if key == "expr_str" else text

    numbered: dict[str, Any] = _map_texts(program, renumber)
    ranges = program["range_constraints"]
    numbered["range_constraints"] = {
        numbers.get(name, name): ranges[name] for name in ranges
    }
    return numbered


def summarize_parts(canonical: Canonical, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return short digests of the parts in which two programs can differ, for reports.

    Args:
        tensors: for `weights` and `constants`, the archive's record of each tensor by name.
    """
    program = canonical.program
    module = canonical.module
    tensor_digests = {}
    for records in tensors.values():
        for name, record in records.items():
            tensor_digests[name] = _short_digest(record)
    schema = {name: value for name, value in program.items() if name != "graph_module"}
    schema["range_constraints"] = None
    return {
        "modules": canonical.modules,
        "tensors": tensor_digests,
        "ranges": program["range_constraints"],
        "signature": _shorten(module["signature"]),
        "call": _shorten(module["module_call_graph"]),
        "wiring": _shorten(module["graph"]),
        "schema": _short_digest(schema),
    }


def _short_digest(value: Any) -> str:
    return _shorten(digest.canonical_json(value))


def _shorten(text: bytes) -> str:
    """Return a digest cut to 16 digits, to show where programs differ; never in a key."""
    return digest.hash_bytes(text)[:16]
