"""Finds branches and bodies of control flow that no call of a program has run.

A package whose branch was never taken was not compared there, whatever its other outputs show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.features.unjudged.dependence import find_levels, output_values
from pipeline.features.unjudged.unmoved_node import find_ancestors
from pipeline.program.eager import Source, functionalized
from pipeline.program.graphs import control_flow_bodies
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import control_flow_name, node_label
from pipeline.program.source_lines import source_line
from pipeline.store.errors import listed
from pipeline.validate.conclusions import ACCEPT

_MOST_NAMED = 2
Flows = dict[Node, list[GraphModule]]


class RunBodies:
    """Records which bodies of a program's control flow run, in all its `Source`s.

    The copies of a module in the sources share its hooks (`program.eager._clone_tree`). Sources
    that round values run no modules, so they record nothing.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self._flows: Flows = {}
        self._ran: set[str] = set()
        self._hooks: list[Any] = []
        if control_flow_bodies(program.graph_module):
            module = Source(program).module
            self._flows = control_flow_bodies(module)
            self._watch(self._flows, "")

    def _watch(self, flows: Flows, prefix: str) -> None:
        for path, body in _iter_bodies(flows, prefix):
            note = partial(self._note, path)
            self._hooks.append(body.register_forward_pre_hook(note))
            self._watch(control_flow_bodies(body), f"{path}.")

    def _note(self, path: str, module: Any, inputs: Any) -> None:
        self._ran.add(path)

    def release(self) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def explain(self, outputs: int, state: Collection[str]) -> dict[int, str]:
        """Return the reason why an output is not judged, by its position.

        Only outputs count that a body could change; if it changes only state, those are all
        outputs. A condition that no input and no state reaches can't change, so its other branch
        doesn't count.

        Args:
            outputs: the number of outputs.
            state: the qualified names of buffers that change.
        """
        unrun: dict[int, list[str]] = {}
        if not self._flows:
            return {}
        functional = functionalized(self.program)
        levels = find_levels(functional, state)
        values = output_values(functional)
        # Functionalizing makes new nodes, but keeps the order of control flow.
        nodes = control_flow_bodies(functional.graph_module)
        for place, (flow, node) in enumerate(zip(self._flows, nodes, strict=True)):
            condition = node.args[0] if control_flow_name(node) == "cond" else None
            if isinstance(condition, Node) and levels[condition] == "nothing":
                continue
            descriptions = list(
                self._describe_unrun({flow: self._flows[flow]}, "", place)
            )
            if not descriptions:
                continue
            changed = _find_outputs_of(node, values) or range(outputs)
            for output in changed:
                unrun.setdefault(output, []).extend(descriptions)
        return {output: _explain(words) for output, words in unrun.items()}

    def _describe_unrun(
        self, flows: Flows, prefix: str, first: int = 0
    ) -> Iterator[str]:
        """Yield the outermost bodies that didn't run, in words."""
        paths = _iter_bodies(flows, prefix, first)
        for flow, bodies in flows.items():
            for number, body in enumerate(bodies):
                path, _ = next(paths)
                if path in self._ran:
                    inner = control_flow_bodies(body)
                    yield from self._describe_unrun(inner, f"{path}.")
                else:
                    yield _describe_body(flow, number)


def _iter_bodies(
    flows: Flows, prefix: str, first: int = 0
) -> Iterator[tuple[str, GraphModule]]:
    """Yield each body with its path, such as `0/1.2/0`: the flow's number and the body's."""
    for number, bodies in enumerate(flows.values(), first):
        for place, body in enumerate(bodies):
            yield f"{prefix}{number}/{place}", body


def _find_outputs_of(node: Node, values: Sequence[Any]) -> list[int]:
    """Return the positions of the outputs that are computed from a node."""
    places = []
    for place, value in enumerate(values):
        if isinstance(value, Node) and node in find_ancestors(value):
            places.append(place)
    return places


def _describe_body(flow: Node, number: int) -> str:
    name = control_flow_name(flow)
    if name != "cond":
        return f"the body of {_locate(flow)}"
    branch = ("true", "false")[number]
    condition = flow.args[0]
    described = f"the {branch} branch of {_locate(flow)}"
    if isinstance(condition, Node):
        described += f", whose condition is {node_label(condition)}"
    return described


def _locate(node: Node) -> str:
    where = " in ".join(filter(None, (control_flow_name(node), innermost_module(node))))
    line = source_line(node)
    return f"{where} ({line})" if line else where


def _explain(descriptions: Sequence[str]) -> str:
    return (
        f"no call runs {listed(descriptions, _MOST_NAMED)}; add an example that does; "
        f"{ACCEPT}"
    )
