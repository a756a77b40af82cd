"""Reads the answers of workers, which are trusted no more than data from a remote."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from pipeline.features.cluster.forms import Json, is_answer
from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.run.action_status import log_name, log_path, progress_path, write_status
from pipeline.run.performed import Report
from pipeline.run.stored import find_mismatch, find_wrong_content
from pipeline.store.entries import fits_action
from pipeline.store.errors import PipelineError
from pipeline.store.files import remove, write_atomically
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.usage import Usage
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace

_ENDINGS = {"done", "refused", "lost", "missing"}
_FIRST_LANE = 1 << 32  # above all numbers of processes


class Answers:
    """Answers for the actions of a workspace. All methods are thread-safe."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lanes: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def note(self, action: Action, report: Json) -> None:
        """Record a running action's progress and output in the same files as for a local action.

        Raises OSError.
        """
        path = progress_path(action, self._workspace)
        write_status(
            path, report["stage"], report["done"], report["total"], report["host"]
        )
        if report["log"]:
            with open(log_path(action, self._workspace), "a", encoding="utf-8") as log:
                log.write(report["log"])

    def read(self, action: Action, text: object) -> Json:
        """Parse an answer, write its log, and remove the progress of its action.

        Raises PipelineError if the answer has an unknown form, and OSError.
        """
        answer = _parse(text)
        workspace = self._workspace
        remove(progress_path(action, workspace))
        write_atomically(
            log_path(action, workspace), answer["log"].encode(), workspace.build
        )
        if workspace.store.remote is not None:
            workspace.store.remote.forget_misses()
        return answer

    def report(self, action: Action, performed: Json, answer: Json) -> Report:
        """Return the report of an action that a worker has performed."""
        event_facts = performed["event"]
        result = performed["result"]
        error = event_facts["error"] or self._find_wrong(action, performed)
        event = make_event(
            action,
            "failed"
            if error and event_facts["outcome"] != "lost"
            else event_facts["outcome"],
            # By this machine's clock.
            start=min(event_facts["start"], time.time() - event_facts["seconds"]),
            seconds=event_facts["seconds"],
            stages=[tuple(span) for span in event_facts["stages"]],
            stage=event_facts["stage"],
            worker=self._lane(answer["worker"], event_facts["worker"]),
            host=one_line(answer["host"]),
            peak_bytes=event_facts["peak_bytes"],
            error=error,
            log=log_name(action, self._workspace) if error else "",
        )
        counts_by_kind: Any = performed["usage"]
        usage = {kind: Usage(**counts) for kind, counts in counts_by_kind.items()}
        asked: Any = performed["remote"]
        remote = asked and (RemoteCounts(**asked[0]), asked[1])
        return Report(event, usage, remote, result)

    def _find_wrong(self, action: Action, performed: Json) -> str:
        """Return why a worker's result can't be used, or "" if it is stored here and valid."""
        store, result = self._workspace.store, performed["result"]
        try:
            if result is not None:
                wrong = _find_wrong_result(store, action, result)
                return f"its worker's result is not used: {wrong}" if wrong else ""
            is_stored = store.get(action.digest) is not None
        except MissingBlobError:
            is_stored = False
        mistake = "its worker made it, but neither this store nor its remote has it"
        return (
            ""
            if is_stored
            else f"{mistake}; a worker must share one of them, and may write there"
        )

    def _lane(self, worker: str, process: int) -> int:
        """Return the lane number of a worker's process, which comes after this machine's lanes."""
        with self._lock:
            return self._lanes.setdefault(
                (worker, process), _FIRST_LANE + len(self._lanes)
            )


def _parse(text: object) -> Json:
    """Parse an answer. Raises PipelineError if it has an unknown form."""
    try:
        answer: Any = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        raise PipelineError("its worker's answer is not JSON") from None
    if not is_answer(answer) or len(_ENDINGS & answer.keys()) != 1:
        raise PipelineError("its worker's answer has an unknown form")
    complete: Json = answer
    return complete


def _find_wrong_result(store: Store, action: Action, result: Mapping[str, Any]) -> str:
    """Return what is wrong with a result from a remote worker, or "" if it fits the action.

    The result may be that of a failed validation. Raises MissingBlobError.
    """
    if not fits_action(action.key, result):
        return "it does not have the form of such a result"
    if result.get("facts", {}).get("ok", True):
        return find_mismatch(store, action, result)
    return find_wrong_content(store, result)
