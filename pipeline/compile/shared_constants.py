"""Separate constants that both a delegate and a branch use, so that each gets a copy.

ExecuTorch copies a constant for each of its users, but doesn't see the operands of control flow,
which are in a list, and gives up.
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
    """A partitioner's claim on constants that a branch also takes; args name their placeholders."""


def retry_with_separate_constants(
    programs: Mapping[str, ExportedProgram],
    attempt: Callable[[dict[str, ExportedProgram]], _T],
) -> _T:
    """Call `attempt` with the programs, separating constants until none are shared any more."""
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
    """Return a program whose control flow takes these placeholders' constants from new ones.

    The new placeholders hold the same tensors, and equal constants are emitted only once.
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
        # Insert it after the original: specs and placeholders must keep the same order.
        with module.graph.inserting_after(placeholders[name]):
            copied_placeholder = module.graph.placeholder(f"{name}_of_branches")
        copied_placeholder.meta = dict(placeholders[name].meta)
        for user in list(placeholders[name].users):
            if isinstance(user.target, torch._ops.HigherOrderOperator):
                user.replace_input_with(placeholders[name], copied_placeholder)
        target = f"{spec.target}_of_branches"
        if spec.target in constants:
            values = constants
        else:
            values = state
        values[target] = values[spec.target]
        arg = dataclasses.replace(spec.arg, name=copied_placeholder.name)
        specs.append(dataclasses.replace(spec, arg=arg, target=target))
    signature.input_specs = specs
    module.recompile()
    return program._update(module, signature, state_dict=state, constants=constants)
