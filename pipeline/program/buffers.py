"""The buffers that a serialized program reads and changes, from the JSON of its archive.

Planning asks which methods hold state in common, without torch and so without the schemas of
operators: ATen's names say which operators work in place, and which return a view. Operators of a
model's own that change an argument are seen when the package is validated (`program.eager`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

# ATen operators whose result shares memory with their first argument, or can share it.
_VIEW_NAMES = """
    adjoint alias as_strided chunk contiguous detach detach_ diagonal expand expand_as flatten
    hsplit imag mH mT matrix_H movedim narrow numpy_T permute positive real reshape reshape_as
    select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split transpose
    unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real vsplit
"""
_VIEWS = frozenset(_VIEW_NAMES.split())
# The arguments that ExecuTorch's own operators for language models change
# (extension/llm/custom_ops/op_sdpa_aot.cpp).
_CHANGED_ARGUMENTS = {
    "llama.update_cache": ("cache",),
    "llama.update_cache_with_indices": ("cache",),
    "llama.sdpa_with_kv_cache": ("key_cache", "value_cache"),
}
# The numbers of dtypes in a program's JSON (`torch/_export/serde/schema.py`).
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}


def describe_buffers(program: Json) -> dict[str, dict[str, Any]]:
    """Describe the buffers that a program uses, by qualified name: `shape`, `dtype`, and whether
    it is `changed`."""
    module = program["graph_module"]
    graph, signature = module["graph"], module["signature"]
    specs = [spec["buffer"] for spec in signature["input_specs"] if "buffer" in spec]
    names = {spec["arg"]["name"]: spec["buffer_name"] for spec in specs}
    values = _Aliases({value: {name} for value, name in names.items()})
    values.follow(graph)
    returned = [spec["buffer_mutation"] for spec in signature["output_specs"] if _changes(spec)]
    changed = values.changed.union(spec["buffer_name"] for spec in returned)
    used = changed | {names[value] for value in _used_values(graph) if value in names}
    return {
        name: {**_describe(graph["tensor_values"][value]), "changed": name in changed}
        for value, name in sorted(names.items())
        if name in used
    }


def find_common(uses: Mapping[str, Mapping[str, Json]]) -> dict[str, tuple[str, ...]]:
    """Return the methods of each buffer that several use by one name and at least one changes.

    What has the same name and another shape or dtype is another buffer.

    Args:
        uses: by method, its buffers as `describe_buffers` does.
    """
    methods: dict[str, dict[str, list[str]]] = {}
    changed: set[tuple[str, str]] = set()
    for method, buffers in uses.items():
        for name, use in buffers.items():
            form = describe_form(use)
            methods.setdefault(name, {}).setdefault(form, []).append(method)
            if use["changed"]:
                changed.add((name, form))
    common: dict[str, tuple[str, ...]] = {}
    for name, by_form in methods.items():
        for form, users in by_form.items():
            if len(users) > 1 and (name, form) in changed and name not in common:
                common[name] = tuple(users)
    return common


def describe_form(use: Json) -> str:
    """Return the dtype and shape of a buffer as a text."""
    return f"{use['dtype']} {list(use['shape'])}"


def _changes(output_spec: Json) -> bool:
    return "buffer_mutation" in output_spec


def _describe(tensor: Json) -> dict[str, Any]:
    dtype = tensor["dtype"]
    return {
        "shape": [size.get("as_int", 0) for size in tensor["sizes"]],
        "dtype": _DTYPES.get(dtype, f"dtype {dtype}"),
    }


def _used_values(graph: Json) -> Iterator[str]:
    """Yield the values that the nodes of a graph read, and those that it returns."""
    for node in graph["nodes"]:
        for given in node["inputs"]:
            yield from _value_names(given["arg"])
    yield from _value_names(graph["outputs"])


def _value_names(argument: Any) -> Iterator[str]:
    """Yield the names of the tensors in an argument, in their order."""
    if isinstance(argument, Mapping):
        name = argument.get("name")
        if isinstance(name, str):
            yield name
            return
        for kind, inner in argument.items():
            if kind != "as_graph":
                yield from _value_names(inner)
    elif isinstance(argument, Sequence) and not isinstance(argument, str):
        for inner in argument:
            yield from _value_names(inner)


class _Aliases:
    """Which buffers the values of a graph share memory with, and which of these are `changed`."""

    def __init__(self, buffers: dict[str, set[str]]) -> None:
        self._buffers = buffers
        self.changed: set[str] = set()

    def follow(self, graph: Json) -> None:
        """Follow the buffers through the nodes of a graph, and of the graphs that it calls."""
        for node in graph["nodes"]:
            self._follow_node(node)

    def _follow_node(self, node: Json) -> None:
        namespace, name = _operator(node["target"])
        first = [*_value_names(node["inputs"][0]["arg"])] if node["inputs"] else []
        in_place = _is_in_place(namespace, name)
        if in_place:
            self._change(first)
        outputs = _CHANGED_ARGUMENTS.get(f"{namespace}.{name}", ("out",))
        for given in node["inputs"]:
            if given["name"] in outputs:
                self._change(_value_names(given["arg"]))
        if in_place or (namespace == "aten" and name in _VIEWS) or name == "getitem":
            self._add(_value_names(node["outputs"]), self._find(first))
        self._follow_bodies(node)

    def _follow_bodies(self, node: Json) -> None:
        """Follow the buffers into what a node calls: a branch, a loop's body, a part without
        gradients. Each takes the last of the node's operands, in their order."""
        operands = [name for given in node["inputs"] for name in _value_names(given["arg"])]
        for given in node["inputs"]:
            body = given["arg"].get("as_graph")
            if body is None:
                continue
            graph = body["graph"]
            taken = [*_value_names(graph["inputs"])]
            inside = _Aliases({})
            for name, operand in zip(reversed(taken), reversed(operands), strict=False):
                inside._add([name], self._find([operand]))
            inside.follow(graph)
            self.changed |= inside.changed

    def _find(self, values: Sequence[str]) -> set[str]:
        return {buffer for value in values for buffer in self._buffers.get(value, ())}

    def _add(self, values: Iterator[str] | Sequence[str], buffers: set[str]) -> None:
        if buffers:
            self._buffers.update(dict.fromkeys(values, buffers))

    def _change(self, values: Iterator[str] | Sequence[str]) -> None:
        self.changed |= self._find([*values])


def _operator(target: str) -> tuple[str, str]:
    """Return the namespace and the name in `torch.ops.aten.add_.Tensor`; of a function such as
    `_operator.getitem`, the name alone."""
    path = target.removeprefix("torch.ops.").split(".")
    return (path[0], path[1]) if target.startswith("torch.ops.") else ("", path[-1])


def _is_in_place(namespace: str, name: str) -> bool:
    """Tell whether an operator changes its first argument, as ATen's names say; operators of a
    model's own keep to this mostly."""
    if name.startswith("__"):
        return name.startswith("__i") and name.endswith("__")
    return name.endswith("_") and name not in _VIEWS and namespace not in ("", "higher_order")
