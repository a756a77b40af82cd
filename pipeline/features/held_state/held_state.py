"""Finds buffers that methods are meant to share but a delegate keeps to itself.

`MemoryPlanningPass(share_mutable_buffers=True)` plans one memory location, common to all methods,
for each buffer that stays in the program. If a delegate takes a buffer over, as its own state or,
where its method only reads the buffer, as a constant, it never sees what another method writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from pipeline.program.graphs import called_delegate, iter_nodes
from pipeline.store.errors import PipelineError, listed


def refuse_held_state(lowered: Mapping[str, ExportedProgram]) -> None:
    """Refuse shared buffers that some method changes and a delegate keeps to itself.

    Args:
        lowered: the methods that share their mutable buffers.

    Raises:
        PipelineError: a delegate keeps such buffers; the message names each method, backend and
            buffers.
    """
    delegates = {
        name: list(_iter_delegates(program)) for name, program in lowered.items()
    }
    users: dict[str, set[str]] = {}
    changed: set[str] = set()
    for name, program in lowered.items():
        for part in (
            program,
            *(
                called_delegate_module.original_module
                for called_delegate_module in delegates[name]
            ),
        ):
            for buffer in part.graph_signature.inputs_to_buffers.values():
                users.setdefault(buffer, set()).add(name)
            changed.update(part.graph_signature.buffers_to_mutate.values())
    common = {buffer for buffer in changed if len(users.get(buffer, ())) > 1}
    problems = []
    for name, method_delegates in delegates.items():
        for delegate in method_delegates:
            kept_buffers = (
                delegate.original_module.graph_signature.inputs_to_buffers.values()
            )
            buffers = sorted(common.intersection(kept_buffers))
            if buffers:
                problems.append(_describe(name, delegate.backend_id, buffers))
    if problems:
        raise PipelineError(*dict.fromkeys(problems))


def _describe(method: str, backend: str, buffers: list[str]) -> str:
    names = listed(buffers, 3)
    return (
        f"{method}: {backend} keeps {names} inside its delegate, hidden from other methods, "
        "although `share_mutable_buffers` is true; keep it in the package's memory (Core "
        "ML: `take_over_mutable_buffer: false, take_over_constant_data: false`), or set "
        "`share_mutable_buffers: false`"
    )


def _iter_delegates(program: ExportedProgram) -> Iterator[LoweredBackendModule]:
    for node in iter_nodes(program):
        delegate = called_delegate(node)
        if delegate is not None:
            yield delegate
