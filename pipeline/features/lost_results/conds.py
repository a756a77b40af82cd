"""Finds the `torch.cond` of a program whose result is lost in the emitted plan."""

from __future__ import annotations

from collections.abc import Mapping

from executorch.exir import schema
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.features.lost_results.lost_results import LostResult
from pipeline.program.graphs import control_flow_bodies, graph_modules, iter_nodes
from pipeline.program.plan_values import count_delegate_results, written_values


def find_cond(
    loss: LostResult,
    plan: schema.ExecutionPlan,
    places: Mapping[int, int],
    program: ExportedProgram,
) -> int | None:
    """Return the place of the `torch.cond` whose result is lost, or None if it isn't known.

    Args:
        places: by instruction, the place in the program of the node that it belongs to.
    """
    nodes = list(iter_nodes(program))
    branches = _Branches(
        plan,
        {number: nodes[place] for number, place in places.items()},
        program,
    )
    cond = branches.find_cond(loss.move, loss.source)
    if cond is None:
        return None
    return nodes.index(cond)


class _Branches:
    """The bodies of a program's control flow, and where a plan runs them.

    `nodes` are the nodes that instructions belong to, by the number of the instruction.
    """

    def __init__(
        self,
        plan: schema.ExecutionPlan,
        nodes: Mapping[int, Node],
        program: ExportedProgram,
    ) -> None:
        self._plan = plan
        self._nodes = nodes
        self._results = count_delegate_results(plan, plan.chains[0].instructions)
        self._owners: dict[int, Node] = {}
        for module in graph_modules(program.graph_module):
            for flow, bodies in control_flow_bodies(module).items():
                self._owners.update({id(body.graph): flow for body in bodies})

    def find_cond(self, move: int, source: int) -> Node | None:
        """Return the node whose branch computes the value that a move hands over, or None."""
        for number in range(move - 1, -1, -1):
            call = self._plan.chains[0].instructions[number].instr_args
            if isinstance(call, schema.MoveCall) and call.move_to == source:
                inner_cond = self.find_cond(number, call.move_from)
                if inner_cond is None:
                    return None
                return self._owners.get(id(inner_cond.graph))
            if number not in self._nodes:
                continue
            if source in written_values(self._plan, number, self._results):
                return self._owners.get(id(self._nodes[number].graph))
        return None
