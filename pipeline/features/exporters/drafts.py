"""Drafts of modules that `torch.export.export` rejects.

A draft is the report of `torch.export.draft_export` in this project's words, with the lines of the
workspace.

Within `drafting()`, a failing call of `torch.export.export` returns a draft instead, so the
exporter continues and all of its calls are reported. A draft isn't a sound program: it is read, and
never lowered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._logging.structured import INTERN_TABLE
from torch.export import ExportedProgram

from pipeline.program.patching import replaced
from pipeline.program.source_lines import source_line
from pipeline.store.remedies import explain_error

Json = dict[str, Any]
_INSTALLED = {"site-packages", "dist-packages"}
_TAKEN = (
    "dynamic_shapes",
    "strict",
    "preserve_module_call_signature",
    "prefer_deferred_runtime_asserts_over_guards",
)


@contextmanager
def drafting(root: Path) -> Iterator[list[Json]]:
    """Within the context, draft everything that can't be exported.

    Yields a list to which each call adds a record, in the form of `diagnose.DIAGNOSIS`.

    Args:
        root: the workspace.
    """
    records: list[Json] = []

    def wrap(export: Any) -> Any:
        def export_or_draft(
            mod: torch.nn.Module, args: Any, kwargs: Any = None, **options: Any
        ) -> ExportedProgram:
            record: Json = {
                "module": type(mod).__name__,
                "place": _find_caller(root),
                "error": "",
                "draft_error": "",
                "findings": [],
            }
            records.append(record)
            try:
                program: ExportedProgram = export(mod, args, kwargs, **options)
                return program
            except Exception as error:
                record["error"] = explain_error(error, root=root)
            taken = {name: options[name] for name in _TAKEN if name in options}
            try:
                draft = torch.export.draft_export(mod, args, kwargs, **taken)
            except Exception as error:
                record["draft_error"] = explain_error(error, root=root)
                raise
            record["findings"] = _describe_report(draft, root)
            return draft

        return export_or_draft

    with replaced(torch.export, "export", wrap):
        yield records


def _find_caller(root: Path) -> str:
    """Return the file and line of the workspace that called `torch.export.export`, or ""."""
    frame = sys._getframe(2)
    while frame is not None:
        if place := _name_place(frame.f_code.co_filename, frame.f_lineno, root):
            return place
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _name_place(filename: str, line: int, root: Path) -> str:
    path = Path(filename)
    if _INSTALLED & set(path.parts) or not path.is_relative_to(root):
        return ""
    return f"{path.relative_to(root).as_posix()}:{line}"


def _describe_report(draft: ExportedProgram, root: Path) -> list[Json]:
    """Return the distinct findings of a draft's report, in the order of the report."""
    report: Any = draft._report  # type: ignore[attr-defined]
    # The report's own table lacks the files that an earlier export of the process numbered.
    filenames = {number: name for name, number in INTERN_TABLE.items()}
    findings: list[Json] = []
    for failure in report.failures:
        finding = _describe(failure, draft, filenames, root)
        if finding not in findings:
            findings.append(finding)
    return findings


def _describe(
    failure: Any, draft: ExportedProgram, filenames: Mapping[int, str], root: Path
) -> Json:
    data = failure.data
    kind = str(failure.failure_type)
    if kind in ("MISSING_FAKE_KERNEL", "MISMATCHED_FAKE_KERNEL"):
        place, code = _find_operator(draft, data["op"], root)
    else:
        place, code = _find_frame(data["user_stack"], filenames, root)
    words = _WORDS.get(kind, _describe_other)
    return {
        "kind": kind.lower().replace("_", " "),
        "place": place,
        "code": code,
        "what": words(data),
    }


def _find_operator(draft: ExportedProgram, name: str, root: Path) -> tuple[str, str]:
    """Return the place and the text of the first line that calls an operator."""
    for node in draft.graph.nodes:
        if str(node.target) == name and (line := source_line(node, root)) is not None:
            return line.where, line.code
    return "", ""


def _find_frame(
    stack: Sequence[Mapping[str, Any]], filenames: Mapping[int, str], root: Path
) -> tuple[str, str]:
    """Return the place and the text of the innermost line of the workspace in a stack.

    Without such a line, returns only the text of the innermost line.
    """
    for frame in reversed(stack):
        place = _name_place(filenames.get(frame["filename"], ""), frame["line"], root)
        if place:
            return place, frame["loc"] or ""
    return "", stack[-1]["loc"] or "" if stack else ""


def _name_operator(name: str) -> str:
    """Return the short name of an operator, `shop::halve` for `shop.halve.default`."""
    return "::".join(name.split(".")[:2])


def _describe_missing(data: Mapping[str, Any]) -> str:
    name = _name_operator(data["op"])
    return (
        f"operator {name} has no fake kernel to compute the output's shape; register one with "
        f'@torch.library.register_fake("{name}")'
    )


def _describe_mismatched(data: Mapping[str, Any]) -> str:
    name = _name_operator(data["op"])
    return f"the fake kernel of {name} differs from its real one: {data['reason']}; correct it"


def _describe_data(data: Mapping[str, Any]) -> str:
    return (
        f"depends on the values of a tensor: {data['expr']}, which was {data['result']}; use "
        f"torch.cond or torch.where to keep both branches, or torch._check to fix one"
    )


def _describe_guard(data: Mapping[str, Any]) -> str:
    return (
        f"holds only for some sizes: {data['expr']}; allowed dynamic_shapes: "
        f"{data['new_dynamic_shapes']}"
    )


def _describe_other(data: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in data.items())


_WORDS = {
    "MISSING_FAKE_KERNEL": _describe_missing,
    "MISMATCHED_FAKE_KERNEL": _describe_mismatched,
    "DATA_DEPENDENT_ERROR": _describe_data,
    "GUARD_ADDED": _describe_guard,
}
