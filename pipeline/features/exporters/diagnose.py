"""`doit diagnose`: everything in a model that `torch.export` can't export, all at once.

A build stops at the first error and doesn't run the exporter again by itself, since that takes the
time of an export, and the exporter may do more than export. Hence this is a separate command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline.cli.grammar import find_named
from pipeline.plan.actions import Action
from pipeline.plan.kinds.export import ExportInputs
from pipeline.plan.plan import Plan
from pipeline.run.action_log import logging_to
from pipeline.run.stages import Stages
from pipeline.store.errors import PipelineError, plural
from pipeline.store.files import make_folder
from pipeline.store.workspace import Workspace

# The output of `doit diagnose --json` (`moments.Command.record`).
DIAGNOSIS = {
    "format": Literal[1],
    "models": [
        {
            "model": (str, "the model, with the parameters of its exporter"),
            "exports": (
                [
                    {
                        "module": (str, "the class of the exported module"),
                        "place": (
                            str,
                            'file and line of the torch.export call; "" if unknown',
                        ),
                        "error": (
                            str,
                            'the error of torch.export; "" if there is none',
                        ),
                        "draft_error": (
                            str,
                            'the error of the draft export; "" if there is none',
                        ),
                        "findings": (
                            [
                                {
                                    "kind": (
                                        str,
                                        "torch's name for the kind of problem",
                                    ),
                                    "place": (str, 'file and line; "" if unknown'),
                                    "code": (str, "the source code in that line"),
                                    "what": (str, "the problem, in a sentence"),
                                }
                            ],
                            "the problems that the draft export found",
                        ),
                    }
                ],
                "the calls of torch.export, in order",
            ),
            "error": (
                str,
                'the exception that the exporter raised; "" if there is none',
            ),
        }
    ],
}


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Yield the lines on each model, or the record that `DIAGNOSIS` describes.

    Args:
        words: models or packages.

    Raises:
        PipelineError: no model is named, a model doesn't exist or has no exporter, or torch.export
            can't export everything.
    """
    exports = _find_exports(plan, words)
    models: list[dict[str, Any]] = []
    for export in exports:
        model = _diagnose(plan.models.export(export), plan.workspace)
        models.append({"model": export, **model})
        if not json:
            yield from _describe(models[-1])
    if json:
        yield {"format": 1, "models": models}
    failed = [model["model"] for model in models if _has_failed(model)]
    if failed:
        raise PipelineError(f"torch.export can't export {', '.join(failed)}")


def _find_exports(plan: Plan, words: Sequence[str]) -> list[str]:
    """Return the exports of models or packages. Raises PipelineError."""
    if not words:
        raise PipelineError("name a model: doit diagnose <model>")
    names = {export: export for export in plan.exporters}
    for package in plan.packages:
        exporter = plan.exporter(package)
        if exporter is not None:
            names.setdefault(str(plan.model(package)), exporter)
            names.setdefault(package, exporter)
    exports: dict[str, None] = {}
    for word in words:
        for name in find_named(word, names, "model with an exporter"):
            exports[names[name]] = None
    return list(exports)


def _diagnose(action: Action[ExportInputs], workspace: Workspace) -> dict[str, Any]:
    """Run an exporter in a separate process; return a record of its exports and errors."""
    make_folder(workspace.logs, workspace.build)
    path: Path = workspace.root / action.inputs.path
    with logging_to(workspace.logs / "diagnose.log"):
        from pipeline.features.exporters.export import (  # imports torch, which warns
            fetch_sources,
            run_drafts,
        )

        fetch_sources(workspace, action.inputs, Stages())
        return run_drafts(action, workspace.root, path.read_bytes())


def _has_failed(model: Mapping[str, Any]) -> bool:
    return bool(model["error"]) or any(call["error"] for call in model["exports"])


def _describe(model: Mapping[str, Any]) -> Iterator[str]:
    calls = model["exports"]
    refused = [call for call in calls if call["error"]]
    counts = f"{len(refused)} of {plural(len(calls), 'export')} rejected"
    summary = counts if refused else "torch.export accepts everything that it exports"
    yield f"{model['model']}: {summary}"
    for call in refused:
        yield f"  {call['module']}, exported at {call['place'] or 'an unknown line'}:"
        for finding in call["findings"]:
            line = [finding["place"], f"`{finding['code']}`" if finding["code"] else ""]
            yield f"    {': '.join(filter(None, [*line, finding['what']]))}"
        if not call["findings"]:
            yield f"    {call['error']}"
        if call["draft_error"]:
            yield f"    no draft of it either: {call['draft_error']}"
    if model["error"]:
        yield f"  the exporter ended with: {model['error']}"
