"""Times the steps of lowering, to show where ExecuTorch's call spends its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.program import _program
from torch.export import ExportedProgram

from pipeline.compile.preprocess.cached_backend import CachedBackend
from pipeline.program.patching import wrapped

DECOMPOSE, TO_EDGE = "decompose", "to edge"


@contextmanager
def timed_steps(step: Callable[[str], AbstractContextManager[None]]) -> Iterator[None]:
    """Run each step of the lowerings within the context inside `step(name)`.

    If a step raises, its name is added to the error as a note.

    The steps are `decompose` (`ExportedProgram.run_decompositions`), `to edge`, and `partition` and
    `preprocess` with the backend's id. A partition whose result is found in the store counts as
    preprocessed. The rest of the time, lowering puts delegates into graphs.
    """

    def around(name: Callable[..., str]) -> Callable[..., Any]:
        def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                with step(name(*args)):
                    return function(*args, **kwargs)
            except Exception as error:
                error.add_note(name(*args))
                raise

        return call

    with ExitStack() as stack:
        for owner, function, name in (
            (ExportedProgram, "run_decompositions", lambda *_: DECOMPOSE),
            (_program, "_generate_edge_program", lambda *_: TO_EDGE),
            (
                Partitioner,
                "__call__",
                lambda owner_object, *_: f"partition {_backend_id(owner_object)}",
            ),
            (
                CachedBackend,
                "find_or_make",
                lambda owner_object, *_: f"preprocess {owner_object.__name__}",
            ),
        ):
            stack.enter_context(wrapped(owner, function, around(name)))
        yield


def _backend_id(partitioner: Partitioner) -> str:
    spec = getattr(partitioner, "delegation_spec", None)
    if spec is not None:
        return spec.backend_id
    return type(partitioner).__name__
