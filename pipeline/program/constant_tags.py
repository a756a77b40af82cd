"""Reads and writes constant tags: the names of the `.ptd` files to which delegates move constants.

ExecuTorch keeps tags in the metadata of placeholders (exir/passes/external_constants_pass.py),
which torch leaves out of archives. So an archive has an extra file of tags for each program: JSON
that maps qualified names to tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.store.errors import SourceError
from pipeline.store.names import is_file_name

_TAG = "delegate_constant_tag"


def iter_constants(program: ExportedProgram) -> Iterator[tuple[str, Node]]:
    """Yield the qualified name and placeholder of each parameter, buffer and lifted constant."""
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in targets:
            yield targets[node.name], node


def get_tag(node: Node) -> Any:
    """Return the tag of a constant's placeholder, or None if it has none."""
    return (node.meta.get("custom") or {}).get(_TAG)


def set_tag(node: Node, tag: str) -> None:
    """Set the tag of a constant's placeholder."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _TAG: tag}


def read_tags(method: str, program: ExportedProgram) -> dict[str, str]:
    """Return the tags of a program's constants. Raises SourceError if one isn't a file name."""
    tags = {}
    for name, node in iter_constants(program):
        tag = get_tag(node)
        if not tag:
            continue
        if not is_file_name(tag):
            raise SourceError(
                f"{method}: constant '{name}' has the tag {tag!r}; it must be the plain name, "
                "without folders, of the .ptd file for the constant"
            )
        tags[name] = tag
    return tags


def write_tags(program: ExportedProgram, tags: Mapping[str, str]) -> None:
    """Set the tags of constants by qualified name. Raises ValueError for an unknown name."""
    nodes = dict(iter_constants(program))
    unknown = sorted(tags.keys() - nodes.keys())
    if unknown:
        raise ValueError(f"tags '{unknown[0]}', which is not a constant of the program")
    for name, tag in tags.items():
        set_tag(nodes[name], tag)
