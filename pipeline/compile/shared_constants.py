"""Separates constants that both a delegate and control flow take.

ExecuTorch copies a constant for each of its users, but overlooks operands of control flow, which
are in a list, and fails.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import torch
from torch.export import ExportedProgram

from pipeline.program.graphs import copy_graphs, feeds_control_flow

_T = TypeVar("_T")


class SharedConstantsError(Exception):
    """A partitioner takes constants that are operands of control flow, too.

    `args` are the names of their placeholders.
    """


def retry_with_separate_constants(
    programs: Mapping[str, ExportedProgram],
    attempt: Callable[[dict[str, ExportedProgram]], _T],
) -> _T:
    """Call `attempt` until it succeeds, each time separating the constants that it refuses."""
    separated = dict(programs)
    while True:
        try:
            return attempt(separated)
        except SharedConstantsError as shared:
            separated = {
                name: separate_constants(program, shared.args)
                for name, program in separated.items()
            }


def separate_constants(
    program: ExportedProgram, names: Collection[str]
) -> ExportedProgram:
    """Return a program in which control flow takes copies of the named placeholders.

    The copies hold the same tensors, and equal constants are emitted once.
    """
    module = copy_graphs(program.graph_module)
    signature = copy.deepcopy(program.graph_signature)
    state = dict(program.state_dict)
    constants = dict(program.constants)
    placeholders = {
        node.name: node for node in module.graph.nodes if node.op == "placeholder"
    }
    specs = []
    for spec in signature.input_specs:
        specs.append(spec)
        name = getattr(spec.arg, "name", "")
        if name not in names or not feeds_control_flow(placeholders[name]):
            continue
        # After the original: specs and placeholders must keep the same order.
        with module.graph.inserting_after(placeholders[name]):
            copied_placeholder = module.graph.placeholder(f"{name}_of_branches")
        copied_placeholder.meta = dict(placeholders[name].meta)
        for user in list(placeholders[name].users):
            if isinstance(user.target, torch._ops.HigherOrderOperator):
                user.replace_input_with(placeholders[name], copied_placeholder)
        target = f"{spec.target}_of_branches"
        values = constants if spec.target in constants else state
        values[target] = values[spec.target]
        arg = dataclasses.replace(spec.arg, name=copied_placeholder.name)
        specs.append(dataclasses.replace(spec, arg=arg, target=target))
    signature.input_specs = specs
    module.recompile()
    return program._update(module, signature, state_dict=state, constants=constants)
