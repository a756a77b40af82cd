"""A pass that multiplies a graph's added or multiplied constants by a factor from a file."""

import json
from pathlib import Path

from executorch.exir.pass_base import ExportPass, PassResult

FACTOR = json.loads(Path(__file__).with_name("factor.json").read_text())["factor"]


class Swap(ExportPass):
    """Swaps the operands of additions if the factor is odd."""

    def call(self, graph_module):
        changed = False
        for node in graph_module.graph.nodes:
            if FACTOR % 2 and "add" in str(node.target) and len(node.args) == 2:
                node.args = node.args[::-1]
                changed = True
        graph_module.recompile()
        return PassResult(graph_module, changed)
