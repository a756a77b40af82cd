"""Performs actions in a worker process with the function for their kind.

That function commits its result to the store before it returns. Package files are installed into
`build/` by the process that requested the action.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.compile.preprocess.spill import spilling
from pipeline.moments import call_all, find_functions, load
from pipeline.plan.actions import Action
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.models import Models
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.patching import wrapped
from pipeline.run.build.link import link_package
from pipeline.run.build.load import check_libraries
from pipeline.run.build.perform_compile import Keep, perform_compile
from pipeline.run.install import install
from pipeline.run.stages import IMPORT, WAIT, Stages
from pipeline.run.stored import find_stored
from pipeline.store.errors import PipelineError
from pipeline.store.reasons import refuse_full_disk
from pipeline.store.workspace import Workspace

_LOWERING = ("quantize", "compile")
Deliver = Callable[[Mapping[str, Any]], object]


def perform(
    action: Action,
    workspace: Workspace,
    stages: Stages,
    always: bool,
    keep: Keep | None = None,
    deliver: Deliver | None = None,
) -> bool:
    """Perform an action unless another process did so while this one waited for the lock.

    Args:
        always: perform it even if the store has the result.
        keep: receives the result of a compile action in place of the store.
        deliver: receives the result of a kind that makes files; by default they are installed into
            the package's folder.

    Returns:
        Whether there was nothing to do.

    Raises:
        PipelineError: something that a user can fix. Any other error is a bug.
    """
    deliver = deliver or partial(install, workspace, action)
    verbs: dict[str, Callable[..., Any]] = {
        "compile": partial(perform_compile, always=always, keep=keep),
        "link": partial(link_package, deliver=lambda result, _: deliver(result)),
        "validate": partial(_validate, deliver=deliver, always=always),
    }
    with ExitStack() as turn:
        with stages.stage(WAIT):
            turn.enter_context(workspace.store.lock(action.digest))
        if not always and _done(action, workspace, deliver):
            return True
        # An exporter has a process of its own and loads the libraries there.
        if action.kind != "export":
            with stages.stage(IMPORT):
                load_libraries(action.libraries, workspace.root)
                check_libraries(action, workspace)
        if workspace.fast_lowering and action.kind in _LOWERING:
            for fast in call_all(
                "around_lowering", not runs_user_code(action), action.kind
            ):
                turn.enter_context(fast)
        if action.kind == "compile" and not (
            runs_user_code(action) or action.inputs.emit.etrecord
        ):
            # No other code reads the weights once they are lowered.
            turn.enter_context(spilling())
        if action.kind != "export":
            turn.enter_context(checked_flatc())
        run = verbs.get(action.kind) or _find_performer(action)
        run(action, workspace, stages)
        return False


def _find_performer(action: Action) -> Callable[..., None]:
    """Return the feature function that performs an action.

    Raises PipelineError if this installation has none.
    """
    performers = {**find_functions("perform"), **find_functions("perform_export")}
    if action.kind not in performers:
        raise PipelineError(
            f"{action.title}: this installation has no feature for exporters; export the model "
            "to an archive elsewhere"
        )
    return load(performers[action.kind])


@contextmanager
def checked_flatc() -> Iterator[None]:
    """Raise OSError if the disk was full when flatc ran.

    flatc exits with status 0 after writing only a part of its file. This can go once flatc reports
    the failure (ExecuTorch 1.4.1 and 1.5.1 don't).
    """
    from executorch.exir._serialize import _flatbuffer

    def run(run_flatc: Callable[..., None], arguments: Sequence[str]) -> None:
        run_flatc(arguments)
        refuse_full_disk(tempfile.gettempdir())

    with wrapped(_flatbuffer, "_run_flatc", run):
        yield


def _validate(*arguments: Any, **options: Any) -> None:
    # A 6 MB import that only validation needs.
    from pipeline.run.prove.validate import validate

    validate(*arguments, **options)


def runs_user_code(action: Action) -> bool:
    """Return whether an action runs third-party passes, operator libraries or backend plugins.

    It then gets a process of its own. An export isolates its exporter itself.
    """
    if action.kind == "export":
        return False
    if action.libraries or action.inputs.references:
        return True
    for config in action.inputs.configs.values():
        for name in config.backend_names:
            if name in BACKENDS and BACKENDS[name].plugin:
                return True
    return False


def _done(action: Action, workspace: Workspace, deliver: Deliver) -> bool:
    store = workspace.store
    # Its inputs, and so its key, may have become known in the meantime.
    if action.kind == "export":
        action = Models(workspace, action.inputs.surroundings).export(action.model)
        if action.inputs.unfollowed:
            return False
    kind = KINDS[action.kind]
    if kind.installed:
        if (result := find_stored(store, action)) is not None:
            deliver(result)
        return result is not None
    entry = store.get(action.digest)
    return entry is not None and store.intact(kind.blobs(entry.result))
