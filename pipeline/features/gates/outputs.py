"""The outputs of methods: names, dtypes and sizes, and their changes from the accepted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report.formatting import size_range
from pipeline.store.json_diff import diff_names

Json = Mapping[str, Any]


def find_changed_outputs(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each output that changed, and its shape before and after.

    A missing shape is "none". If the number of outputs is the same, they are paired by position,
    since names may change, too.

    Args:
        before: dtype and sizes by name, as returned by `output_shapes`.
    """
    if len(before) == len(after):
        before = dict(zip(after, before.values(), strict=True))
    for (name,), old, new in diff_names(before, after, "none"):
        yield name, old, new


def output_names(signature: Json, number: int) -> list[str]:
    """Return a method's output names, or positions if the signature doesn't name each output."""
    names = [leaf["name"] for leaf in _leaves(signature.get("outputs"))]
    if len(names) == number:
        return names
    return [f"output[{place}]" for place in range(number)]


def output_shapes(signature: Json) -> dict[str, str]:
    """Return dtype and sizes of each tensor that a method returns, by the name of the output."""
    shapes: dict[str, str] = {}
    for leaf in _leaves(signature.get("outputs")):
        if "sizes" in leaf:
            sizes = ", ".join(map(_describe_size, leaf["sizes"]))
            shapes[leaf["name"]] = f"{leaf.get('dtype', '')} [{sizes}]".strip()
    return shapes


def _describe_size(size: Any) -> str:
    if isinstance(size, Mapping):
        return size_range((size.get("min") or 0, size.get("max")))
    return str(size)


def _leaves(tree: Any) -> Iterator[Json]:
    """Yield the leaves of a signature's tree.

    Its containers are lists that begin with their kind.
    """
    if isinstance(tree, Mapping):
        yield tree
    elif isinstance(tree, list):
        for child in tree:
            yield from _leaves(child)
