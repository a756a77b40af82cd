"""`doit pretrained`: writes a package in the form that transformers' `ExportedModel` reads.

transformers' runner loads a `.pte` for each component and calls its method `forward`; `export.json`
describes how to flatten arguments and reassemble results (`ExportedModel.from_pretrained`). The
methods come from the package: nothing is compiled again. Weights that methods share are repeated in
each file, since that runner loads no data next to a program. Source:
`transformers/exporters/base.py` of 5.24.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.verbs import known_packages
from pipeline.features.transformers.recorded import read_record
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.program.archive_reader import open_archive
from pipeline.program.sources import MethodSource
from pipeline.run.action_log import logging_to
from pipeline.store.errors import PipelineError
from pipeline.store.files import make_folder, record_bytes, write_atomically
from pipeline.store.pieces import join_pieces
from pipeline.store.store import MissingBlobError, Store

if TYPE_CHECKING:  # its import takes seconds
    from pipeline.compile.objects import MethodObject

FOLDER = "pretrained"
_CALLED = "forward"  # the method that transformers' runner calls
_SCHEMA = 1  # the schema version of export.json
Json = Mapping[str, Any]


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Write the folder of each package, and yield its path.

    Raises:
        PipelineError: a package's build is out of date, its model was not exported by transformers'
            exporters, or it keeps weights apart from its program.
    """
    for package in known_packages(plan, words):
        plan.check(package)
        status = link_status(plan, package)
        if not status.current:
            raise PipelineError(
                f"{package}: its build is out of date ({status.reason}); run `doit lower "
                f"{package}` first"
            )
        yield f"written: {write_folder(plan, package).relative_to(plan.workspace.root)}/"


def write_folder(plan: Plan, package: str) -> Path:
    """Write the folder of a built package, and return it. Raises PipelineError."""
    workspace = plan.workspace
    store = workspace.store
    link = plan.link(package)
    compiles = plan.compiles(package)
    assert link is not None and compiles is not None
    folder = workspace.package(package) / FOLDER
    programs: dict[str, Path] = {}
    records: dict[str, Json] = {}
    for action in compiles:
        for method, source in action.inputs.sources.items():
            records[method] = _read_record(package, method, source)
    make_folder(workspace.logs, workspace.build)
    make_folder(folder, workspace.build)
    with logging_to(
        workspace.logs / f"{FOLDER}.log"
    ):  # libraries print warnings as they load
        from pipeline.compile.objects import parse_object
    for action in compiles:
        if (entry := store.get(action.digest)) is None:
            raise MissingBlobError(f"the object of {action.title} is not in the store")
        unit = parse_object(entry.result["object"])
        for method in action.inputs.sources:
            alone = _take_method(unit, method, store)
            programs[method] = _link(package, method, alone, link.key["layout"], store)
    order = [name for name in link.key["order"] if name in records]
    _write(folder, programs, {name: records[name] for name in order})
    return folder


def _read_record(package: str, method: str, source: MethodSource) -> Json:
    """Return the record that transformers' exporters left about a method."""
    with open_archive(source.archive) as archive:
        graph = archive.program(source.entry)["graph_module"]
    custom = json.loads((graph.get("metadata") or {}).get("custom", "{}"))
    record = read_record(method, {"custom": custom})
    if record is None or "component" not in record:
        raise PipelineError(
            f"{package}/{method}: its model was not exported by transformers' exporters; use "
            "`Exported(...)` in its source, or models/<model>.yaml"
        )
    return record


def _take_method(unit: MethodObject, method: str, store: Store) -> MethodObject:
    """Return one method of a unit as a separate object, named `forward`."""
    from pipeline.compile.objects import program_from_bytes, program_to_bytes, put_blob

    program = program_from_bytes(store.read(unit.program.digest))
    plans = [plan for plan in program.execution_plan if plan.name == method]
    program.execution_plan = [replace(plan, name=_CALLED) for plan in plans]
    keys = unit.keys.get(method)
    return replace(
        unit,
        program=put_blob(store, program_to_bytes(program)),
        named=tuple(n for n in unit.named if keys is None or n.key in keys),
        keys={},
    )


def _link(
    package: str, method: str, alone: MethodObject, layout: Json, store: Store
) -> Path:
    """Link one method, and return the blob of its `.pte`."""
    from pipeline.compile.link import lay_out

    files = lay_out([alone], {}, store, layout=layout)
    program = files.pop("")
    if files:
        raise PipelineError(
            f"{package}/{method}: {', '.join(sorted(files))}.ptd contains weights, but "
            "transformers' runner loads no .ptd; leave out `emit.external_weights` and similar "
            "options"
        )
    content, _ = join_pieces(program, store)
    return store.verified_path(content)


def _write(
    folder: Path, programs: Mapping[str, Path], records: Mapping[str, Json]
) -> None:
    """Write the files of the folder; `export.json`, which names the others, comes last."""
    components = {}
    configs: Json = {}
    for method, record in records.items():
        name = record["component"]
        file = f"{name}.pte"
        shutil.copyfile(programs[method], folder / file)
        components[name] = {"file": file, "metadata": record["metadata"]}
        configs = record
    for key in ("config", "generation_config"):
        if configs.get(key) is not None:
            write_atomically(folder / f"{key}.json", record_bytes(configs[key]))
    manifest = {
        "schema_version": _SCHEMA,
        "export_format": "executorch",
        "components": components,
    }
    write_atomically(folder / "export.json", record_bytes(manifest))
