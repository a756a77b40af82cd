"""Finds the buffers that a serialized program reads and changes, from the JSON of its archive.

Planning asks which methods share state, but imports no torch and so has no operator schemas. It
relies on ATen's naming to tell which operators work in place and which return a view. Custom
operators of a model that change an argument are found later, when the package is validated
(`program.eager`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

# ATen operators whose result shares, or may share, memory with their first argument.
_VIEW_NAMES = """
    adjoint alias as_strided chunk contiguous detach detach_ diagonal expand expand_as flatten
    hsplit imag mH mT matrix_H movedim narrow numpy_T permute positive real reshape reshape_as
    select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split transpose
    unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real vsplit
"""
_VIEWS = frozenset(_VIEW_NAMES.split())
# The arguments that ExecuTorch's operators for language models change
# (extension/llm/custom_ops/op_sdpa_aot.cpp).
_CHANGED_ARGUMENTS = {
    "llama.update_cache": ("cache",),
    "llama.update_cache_with_indices": ("cache",),
    "llama.sdpa_with_kv_cache": ("key_cache", "value_cache"),
}
# dtypes by their numbers in a program's JSON (`torch/_export/serde/schema.py`).
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
    """Return, by qualified name, the `shape`, `dtype` and `changed` of each buffer in a program."""
    module = program["graph_module"]
    graph = module["graph"]
    signature = module["signature"]
    names: dict[str, str] = {}  # buffer names, keyed by the graph values that hold them
    for input_spec in signature["input_specs"]:
        if "buffer" in input_spec:
            buffer = input_spec["buffer"]
            names[buffer["arg"]["name"]] = buffer["buffer_name"]
    aliases = _Aliases({value: {name} for value, name in names.items()})
    aliases.follow(graph)
    changed = set(aliases.changed)
    for output_spec in signature["output_specs"]:
        if "buffer_mutation" in output_spec:
            changed.add(output_spec["buffer_mutation"]["buffer_name"])
    used = changed | {names[value] for value in _used_values(graph) if value in names}
    buffers = {}
    for value, name in sorted(names.items()):
        if name in used:
            description = _describe(graph["tensor_values"][value])
            buffers[name] = {**description, "changed": name in changed}
    return buffers


def find_common(uses: Mapping[str, Mapping[str, Json]]) -> dict[str, tuple[str, ...]]:
    """Return the buffers that several methods use and at least one changes, with their methods.

    Buffers of the same name with different shapes or dtypes are different buffers.

    Args:
        uses: the buffers of each method, as `describe_buffers` returns them.
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
    """Return the dtype and shape of a buffer as text."""
    return f"{use['dtype']} {list(use['shape'])}"


def _describe(tensor: Json) -> dict[str, Any]:
    dtype = tensor["dtype"]
    return {
        "shape": [size.get("as_int", 0) for size in tensor["sizes"]],
        "dtype": _DTYPES.get(dtype, f"dtype {dtype}"),
    }


def _used_values(graph: Json) -> Iterator[str]:
    """Yield the names of the values that a graph's nodes read, then of those that it returns."""
    for node in graph["nodes"]:
        yield from _operands(node)
    yield from _value_names(graph["outputs"])


def _operands(node: Json, most: int | None = None) -> Iterator[str]:
    for node_input in node["inputs"][:most]:
        yield from _value_names(node_input["arg"])


def _value_names(argument: Any) -> Iterator[str]:
    """Yield the names of the tensors in an argument, in order, without those inside a graph."""
    if isinstance(argument, dict):  # not Mapping, whose check takes longer
        name = argument.get("name")
        if isinstance(name, str):
            yield name
            return
        for kind, member in argument.items():
            if kind != "as_graph":
                yield from _value_names(member)
    elif isinstance(argument, list):
        for member in argument:
            yield from _value_names(member)


class _Aliases:
    """The buffers whose memory each value of a graph shares; `changed` holds the written ones."""

    def __init__(self, buffers: dict[str, set[str]]) -> None:
        self._buffers = buffers
        self.changed: set[str] = set()

    def follow(self, graph: Json) -> None:
        """Track the buffers through the nodes of a graph and of the graphs that it calls."""
        for node in graph["nodes"]:
            self._follow_node(node)

    def _follow_node(self, node: Json) -> None:
        namespace, name = _operator(node["target"])
        first_operand = list(_operands(node, 1))
        is_in_place = _is_in_place(namespace, name)
        is_view = (namespace == "aten" and name in _VIEWS) or name == "getitem"
        if is_in_place:
            self._change(first_operand)
        outputs = _CHANGED_ARGUMENTS.get(f"{namespace}.{name}", ("out",))
        for node_input in node["inputs"]:
            if node_input["name"] in outputs:
                self._change(_value_names(node_input["arg"]))
        if is_in_place or is_view:
            self._add(_value_names(node["outputs"]), self._find(first_operand))
        self._follow_bodies(node)

    def _follow_bodies(self, node: Json) -> None:
        """Track the buffers into the graphs that a node calls.

        Such a graph is a branch, a loop's body, or a `no_grad` region; its inputs are the last
        operands of the node, in order.
        """
        operands = list(_operands(node))
        for node_input in node["inputs"]:
            body = node_input["arg"].get("as_graph")
            if body is None:
                continue
            graph = body["graph"]
            parameters = list(_value_names(graph["inputs"]))
            aliases = _Aliases({})
            for name, operand in zip(
                reversed(parameters), reversed(operands), strict=False
            ):
                aliases._add([name], self._find([operand]))
            aliases.follow(graph)
            self.changed |= aliases.changed

    def _find(self, values: Sequence[str]) -> set[str]:
        return set().union(*(self._buffers.get(value, ()) for value in values))

    def _add(self, values: Iterator[str] | Sequence[str], buffers: set[str]) -> None:
        if buffers:
            self._buffers.update(dict.fromkeys(values, buffers))

    def _change(self, values: Iterator[str] | Sequence[str]) -> None:
        self.changed |= self._find([*values])


def _operator(target: str) -> tuple[str, str]:
    """Return the namespace and name of an operator.

    They are "aten" and "add_" for `torch.ops.aten.add_.Tensor`. The namespace of a function such as
    `_operator.getitem` is "".
    """
    path = target.removeprefix("torch.ops.").split(".")
    if target.startswith("torch.ops."):
        return path[0], path[1]
    return "", path[-1]


def _is_in_place(namespace: str, name: str) -> bool:
    """Return whether an operator changes its first argument, judging by ATen's naming convention.

    Most custom operators follow the convention too.
    """
    if name.startswith("__"):
        return name.startswith("__i") and name.endswith("__")
    return (
        name.endswith("_")
        and name not in _VIEWS
        and namespace not in ("", "higher_order")
    )
