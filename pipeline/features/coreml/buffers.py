"""Finds mutable buffers that Core ML takes over despite `take_over_mutable_buffer: false`.

Upstream's `tag_constant_data` (executorch/exir/backend/utils.py) treats a buffer as mutable only if
an operator that reads it computes its new value, as `add` does for `total.add_(x)`. A window that
is joined by `cat` and cut by `slice` counts as a constant, is moved into the model and becomes a
state there, which needs iOS 18 (executorch #21855). ExecuTorch 1.5 detects such buffers: this
module can go with 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.features.coreml.options import CoreMLOptions
from pipeline.program.operators import node_label

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_TAG = "delegation_tag"


def find_taken_over(options: CoreMLOptions, program: ExportedProgram) -> Iterator[str]:
    """Yield a sentence for each buffer that becomes a state despite `take_over_mutable_buffer:
    false`.

    Args:
        program: the program, tagged by the partitioner.
    """
    if options.take_over_mutable_buffer:
        return
    signature = program.graph_signature
    names = signature.inputs_to_buffers
    taken_over = set()
    for node in program.graph.find_nodes(op="placeholder"):
        if _TAG in node.meta and node.name in names:
            taken_over.add(names[node.name])
    nodes = {node.name: node for node in program.graph.nodes}
    for value, buffer in signature.buffers_to_mutate.items():
        if buffer in taken_over:
            yield (
                f"Core ML keeps the buffer '{buffer}' as a state in the model, which needs ios18, "
                "against `take_over_mutable_buffer: false`: its new value comes from "
                f"{node_label(nodes[value])}, which does not read the buffer itself, so that "
                "ExecuTorch takes it for a constant; set `take_over_constant_data: false`, too, "
                "or make the state an input and an output of the method"
            )
