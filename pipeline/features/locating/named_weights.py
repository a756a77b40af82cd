"""Names the weight of a delegate that differs from a new lowering's, and the weight's reader."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name


def diff_named_data(
    now: Mapping[str, bytes], then: Mapping[str, bytes], program: ExportedProgram | None
) -> tuple[str, str]:
    """Describe how two versions of a delegate's weights differ, and name the first that does."""
    for key, content in then.items():
        if now.get(key) != content:
            name = name_constant(content, program)
            changed = _describe_change(now.get(key), content)
            sentence = f"has a weight {name or repr(key)} that differs from its build ({changed})"
            return sentence, name
    return "", ""


def _describe_change(now: bytes | None, then: bytes | None) -> str:
    if now is None or then is None:
        return "it is not there" if now is None else "its build has none"
    if len(now) != len(then):
        return f"{len(now):,} bytes, must be {len(then):,}"
    bytes_now, bytes_then = (
        torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in (now, then)
    )
    places = (bytes_now != bytes_then).nonzero().flatten()
    return f"{len(places):,} of {len(then):,} bytes differ, the first at {int(places[0]):,}"


def name_constant(content: bytes | None, program: ExportedProgram | None) -> str:
    """Return the qualified name of the parameter, buffer or constant that holds some bytes.

    A backend may store the elements in any order. The name is "" if there is none, or if the bytes
    include padding.
    """
    if not content or program is None:
        return ""
    content_bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if isinstance(tensor, torch.Tensor) and tensor.nbytes == len(content):
            kind = kinds.get(tensor.element_size(), torch.uint8)
            elements = tensor.detach().contiguous().reshape(-1).view(kind)
            if torch.equal(
                elements.sort().values, content_bytes.view(kind).sort().values
            ):
                return name
    return ""


def find_reader(constant: str, program: ExportedProgram) -> int | None:
    """Return the place of the first operator that reads a constant of the program."""
    specs = program.graph_signature.input_specs
    reads = {spec.arg.name for spec in specs if spec.target == constant}
    for place, node in enumerate(iter_nodes(program)):
        if node.op == "call_function" and reads & {
            i.name for i in node.all_input_nodes
        }:
            if not base_name(node).startswith("dequantize"):
                return place
            reads.add(node.name)
    return None
