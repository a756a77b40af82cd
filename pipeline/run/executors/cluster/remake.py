"""Makes an action again from its parcel, in a process of a cluster's worker, and performs it.

The action is made of the parcel's data by the functions that planned it, with this process's code,
libraries and machine. So its key is the one that was asked for, or says what is other here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.plan import keys
from pipeline.plan.actions import Action, LinkInputs
from pipeline.plan.key_diff import describe_differences
from pipeline.plan.pass_inputs import PassInputs
from pipeline.program.sources import MethodSource
from pipeline.run.executors.cluster.forms import Done, Parcel, Source
from pipeline.run.executors.cluster.pack import read_data
from pipeline.run.worker import Report, run
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import PipelineError, Problem
from pipeline.store.files import copy_atomically
from pipeline.store.forms import fits
from pipeline.store.json_diff import diff_json
from pipeline.store.pieces import blobs_of_files
from pipeline.store.settings import OperatorSettings, read_settings
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.toolchain import code, toolchain
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

_MACHINE = ("host", "facts", "not_run")  # of keys: facts of a machine


def perform_parcel(text: str, folder: str) -> str:
    """Perform the action of a parcel with `folder` as its workspace; return what goes into an
    `Answer` as JSON."""
    from pipeline.config.variables import Secret

    parcel: Parcel = read_data(text, Secret)
    if not fits(json.loads(text), Parcel):
        return json.dumps({"missing": "the parcel has a form that this worker does not know"})
    workspace = _open_workspace(parcel, Path(folder))
    try:
        _materialise(parcel, workspace)
        action = remake(parcel, workspace)
    except MissingBlobError as error:
        remedy = "let both use one store (PTE_PIPELINE_STORE) or remote (PTE_PIPELINE_REMOTE)"
        return json.dumps({"missing": f"{error}; {remedy}"})
    except PipelineError as error:
        return json.dumps({"refused": {"differences": [str(error)], "here": False}})
    if action.digest != hash_json(parcel["key"]):
        return json.dumps({"refused": _refuse(action.key, parcel)})
    report = run(action, workspace, parcel["always"])
    if report.result is not None:  # a validation that failed is in no entry
        workspace.store.share([], blobs_of_files(report.result))
    return json.dumps({"done": _to_json(report)})


def _open_workspace(parcel: Parcel, folder: Path) -> Workspace:
    """Open a parcel's workspace with this worker's settings, which are those of the folder where it
    was started, and of the environment."""
    settings = read_settings(Path.cwd())
    return Workspace(
        folder,
        Store(settings.store, settings.remote, settings.cap),
        jobs=1,
        operators=OperatorSettings(tuple(parcel["operators"][0]), parcel["operators"][1]),
        fast_lowering=parcel["fast_lowering"],
        refit=parcel["refit"],
    )


def _materialise(parcel: Parcel, workspace: Workspace) -> None:
    """Put the files of a parcel into its workspace, and what else the action reads into the store:
    one that runs passes asks no remote. Raises MissingBlobError."""
    workspace.store.ask(parcel["before"])
    workspace.store.fetch([*parcel["files"].values(), *parcel["blobs"]])
    for name, content in parcel["files"].items():
        path = workspace.root / name
        if os.path.isabs(name) or ".." in path.parts:
            raise PipelineError(f"{name}: is no path in a workspace")
        blob = workspace.store.verified_path(content, once=True)
        copy_atomically(blob, path, workspace.root, durable=False)  # it goes with the action
    CrashLog(workspace.logs, parcel["package"]).write(parcel["crashes"])


def remake(parcel: Parcel, workspace: Workspace) -> Action:
    """Make the action of a parcel whose files are in its workspace. Raises PipelineError."""
    if parcel["kind"] == "link":
        return _link(parcel)
    from pipeline.config.parser import parse_document

    document: Any = SimpleNamespace(data=parcel["config"], problem=_problem, problems=())
    config = parse_document(parcel["package"], document)
    config = config.model_copy(update={"constant_methods": parcel["constants"]})
    sources = {n: _source(each, workspace) for n, each in parcel["sources"].items()}
    inputs, key = PassInputs(workspace), parcel["key"]
    names = key.get("measured", key).get("operators", ())
    libraries = [(name, inputs.find_library(name)) for name in names]

    def files(method: str) -> dict[str, list[Digest]]:
        named = config.methods[method].files
        return {place: _hash(workspace, paths) for place, paths in named.items()}

    def quantize(method: str, source: MethodSource) -> Action:
        return keys.quantize_action(config, method, source, files(method), libraries)

    method = str(parcel["method"])
    if parcel["kind"] == "quantize":
        return quantize(method, sources[""])
    if parcel["kind"] == "compile":
        unit = method.split("+")
        quantizes = {n: quantize(n, sources[n]) for n in unit if config.methods[n].quantize}
        passes = {each: inputs.find(each) for each in config.pass_references(unit)}
        option_files = {name: files(name) for name in unit}
        return keys.compile_action(
            config, unit, sources, quantizes, passes, option_files, libraries
        )
    own = config.validation.methods.items()
    archives = {each.archive.name for each in sources.values() if not each.exported}
    quoted = {n: c for n, c in key["measured"]["sources"].items() if n not in archives}
    return keys.validate_action(
        config,
        key["measured"]["files"],
        sources,
        {name: _hash(workspace, limits.examples or ()) for name, limits in own},
        workspace.find_data(workspace.baseline(parcel["package"])),
        key["places"],
        quoted,
        key["configs"],
        libraries,
        key["held_to"].get("family"),
        parcel["family"],
        only=[name for name in key["measured"].get("only", "").split("+") if name],
        targets=key["held_to"].get("targets", {}),
        in_ci=key["held_to"].get("requires_baseline", False),
        golden={
            name: (path, content)
            for name, each in key["measured"]["programs"].items()
            for path in each.get("golden", ())[:1]
            for content in _hash(workspace, [path])
        },
    )


def _link(parcel: Parcel) -> Action[LinkInputs]:
    """Return the action of a link, whose key holds of this worker its code and libraries only."""
    planned = parcel["key"]
    own = {"code": code("link"), "toolchain": toolchain()}
    inputs = LinkInputs(**parcel["link"] or {})
    return Action("link", parcel["model"], parcel["package"], None, {**planned, **own}, inputs)


def _problem(path: str, what: str, known: str = "", at: str = "") -> Problem:
    return Problem("", path, what, known)


def _source(source: Source, workspace: Workspace) -> MethodSource:
    facts: dict[str, Any] = {**source, "batches": tuple(source["batches"])}
    exported = not source["archive"]
    archive = workspace.root / source["archive"]
    if exported:
        archive = workspace.store.blob_path(Digest(str(source["content"])))
    return MethodSource(**{**facts, "archive": archive, "exported": exported})


def _hash(workspace: Workspace, paths: Any) -> list[Digest]:
    return [digest for digest in map(workspace.find_data, paths) if digest is not None]


def _refuse(own: Mapping[str, Any], parcel: Parcel) -> dict[str, Any]:
    asked = parcel["key"]
    lines = list(describe_differences(asked, own, lambda program: None, parcel["model"]))
    own, asked = ({**key, **key.get("measured", {}), "measured": 0} for key in (own, asked))
    others = {each.path[0].partition("[")[0] for each in diff_json(asked, own)}
    return {"differences": lines, "here": others <= {*_MACHINE}}


def _to_json(report: Report) -> Done:
    event = report.event._asdict()
    fields = ("outcome", "start", "seconds", "stages", "stage", "worker", "peak_bytes", "error")
    asked = report.remote and (vars(report.remote[0]), report.remote[1])
    return {
        "event": {name: event[name] for name in fields},  # type: ignore[typeddict-item]
        "usage": {kind: vars(each) for kind, each in report.usage.items()},  # type: ignore[misc]
        "remote": asked,
        "result": report.result and dict(report.result),  # type: ignore[typeddict-item]
    }
