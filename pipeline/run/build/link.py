"""Links the objects of a package into its files.

One of them is the manifest, which describes the package's contents and what it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

from pipeline.compile.sharing import NOTHING_SHARED, Shared
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.plan.patterns import find_unfitting
from pipeline.run.build.called_operators import join_libraries
from pipeline.run.build.metadata import all_constants, make_metadata, merge_methods
from pipeline.run.stages import Stages
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST, record_bytes
from pipeline.store.pieces import JoinedFile, Piece, joined
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
Units: TypeAlias = Mapping[str, Json]  # results of compile actions
# Receives a result and its files that are assembled from pieces, while they are open.
Deliver: TypeAlias = Callable[[Json, Mapping[str, JoinedFile]], object]
_FORMAT = 1  # of the manifest


class LinkedPackage(NamedTuple):
    """A package that is linked but not yet delivered.

    Attributes:
        units: the results of its compile actions, by unit.
        files: its open program and data files, by name.
        manifest: features may add to it.
        store: receives the blobs of additional files.
    """

    action: Action[LinkInputs]
    units: Units
    files: Mapping[str, JoinedFile]
    manifest: dict[str, Any]
    store: Store


def link_package(
    action: Action[LinkInputs],
    workspace: Workspace,
    stages: Stages,
    deliver: Deliver,
) -> None:
    """Link the objects of a package, and deliver the result with its files."""
    from pipeline.compile.link import lay_out
    from pipeline.compile.objects import parse_object

    store = workspace.store
    units, spent = load_units(action, store)
    order, layout = action.key["order"], action.key["layout"]
    with stages.stage("link"):
        check_units(action, units)
        objects = [parse_object(parts) for parts in _in_order(units, order)]
        metadata = make_metadata(action.key, units)
        constants = all_constants({**action.key, "metadata": metadata})
        shared = find_shared(action, store, may_lay_out=True)
        assert shared is not None
        pieces = lay_out(objects, constants, store, order, layout, shared)
    with stages.stage("store"):
        whole = shared.add_files(pieces, [unit["object"] for unit in units.values()])
        finish_package(action, store, stages, units, whole, spent, deliver)
        for _ in call_all("listen_to_link", action, units, shared, pieces, store):
            pass


def find_shared(
    action: Action[LinkInputs], store: Store, may_lay_out: bool
) -> Shared | None:
    """Return the weights that the package shares, from the first feature that shares any.

    Returns None if their files would have to be laid out and `may_lay_out` forbids it.
    """
    for shared in call_all("share_weights", action, store, may_lay_out):
        if shared is not NOTHING_SHARED:
            weights: Shared | None = shared
            return weights
    return NOTHING_SHARED


def _in_order(units: Units, order: Sequence[str]) -> list[Json]:
    """Return the objects of units in the order of the model's methods."""
    unit_of = {
        method: name for name, unit in units.items() for method in unit["methods"]
    }
    return [
        units[name]["object"] for name in dict.fromkeys(map(unit_of.__getitem__, order))
    ]


def finish_package(
    action: Action[LinkInputs],
    store: Store,
    stages: Stages,
    units: Units,
    pieces: Mapping[str, Sequence[Piece]],
    spent: float,
    deliver: Deliver,
) -> None:
    """Assemble a package's files from pieces, record the package and deliver it.

    Args:
        pieces: by file stem; "" stands for the program file.
        spent: seconds that the compile actions took.
    """
    with ExitStack() as stack:
        linked = {
            f"{stem}.ptd" if stem else f"{action.key['file']}.pte": stack.enter_context(
                joined(file_pieces, store)
            )
            for stem, file_pieces in pieces.items()
        }
        manifest = _make_manifest(action, units, linked)
        package = LinkedPackage(action, units, linked, manifest, store)
        files = {name: file.digest for name, file in linked.items()}
        for further_files in call_all("after_link", package):
            files.update(further_files)
        files[MANIFEST] = store.put(record_bytes(manifest))
        result: dict[str, Any] = {"files": files}
        if shared := {
            name: file.pieces for name, file in linked.items() if file.pieces
        }:
            result["joined"] = shared
        # The cost includes the methods': whoever finds this package doesn't need to compile them.
        store.put_result(
            action.key, result, stages.total + spent, stages.seconds(), stages.peak
        )
        deliver(result, linked)


def check_units(action: Action[LinkInputs], units: Units) -> None:
    """Raise PipelineError listing everything that the config demands but compilation didn't do."""
    methods = merge_methods(units)
    lines: list[str] = []
    for problems in call_all("check_compiled", methods, action.inputs.lowering):
        lines += map(str, problems)
    lines += _find_unfitting(action, units)
    if lines:
        raise PipelineError(*lines)


def _find_unfitting(action: Action[LinkInputs], units: Units) -> list[str]:
    """Return a line for each weight pattern that matches nothing.

    Planning can't check this: quantization and passes make constants whose names it doesn't know.
    """
    names = {
        name
        for method in merge_methods(units).values()
        for tensor in method["constants"]["tensors"].values()
        for name in tensor["names"]
    }
    modules = {name.rpartition(".")[0] for name in names}
    misfits = find_unfitting(action.inputs.emit, names, modules)
    return [f"{path}: {mistake}; {remedy}" for path, mistake, remedy in misfits]


def load_units(
    action: Action[LinkInputs], store: Store
) -> tuple[dict[str, Json], float]:
    """Return the results of the compile actions by unit, and the total seconds that they took."""
    units, spent = {}, 0.0
    for unit, compile_digest in action.inputs.compiles.items():
        if (entry := store.get(compile_digest)) is None:
            raise MissingBlobError(
                f"the object of {action.package}/{unit} is not in the store"
            )
        units[unit] = entry.result
        spent += entry.seconds
    return units, spent


def _make_manifest(
    action: Action[LinkInputs], units: Units, linked: Mapping[str, JoinedFile]
) -> dict[str, Any]:
    """Return the manifest, which has no times, paths or machine names.

    Files are listed with their digests and sizes in bytes.
    """
    inputs = action.inputs
    files = {
        name: {"digest": file.digest, "size": file.size}
        for name, file in linked.items()
    }
    methods = {
        name: {
            "program": inputs.programs[name],
            "unit": unit,
            "lowering": inputs.lowering[name],
            "quantized": inputs.quantizes.get(name),
            **_manifest_facts(method),
        }
        for unit, result in units.items()
        for name, method in result["methods"].items()
    }
    objects = {}
    for unit, result in units.items():
        parts, compiled = result["object"], inputs.compiles[unit]
        objects[unit] = {"action": compiled, "object": hash_json(parts), "parts": parts}
    metadata = make_metadata(action.key, units)
    return {
        "format": _FORMAT,
        "package": action.package,
        "model": action.model,
        "target": action.key["target"],
        "action": action.digest,
        "toolchain": action.key["toolchain"],
        "host": inputs.host,  # if it matters: the last bits of a calibration depend on it
        "emit": inputs.emit,
        "constant_methods": dict(action.key["constant_methods"]),
        **({"metadata": metadata} if metadata else {}),
        "order": action.key["order"],
        "operators": join_libraries_of(units),
        "methods": methods,
        "objects": objects,
        "files": files,
    }


def join_libraries_of(units: Units) -> list[dict[str, Any]]:
    """Return the libraries of operators that the methods of a package call."""
    methods = merge_methods(units)
    return join_libraries({name: m["operators"] for name, m in methods.items()})


def _manifest_facts(method: Json) -> dict[str, Any]:
    """Return a method's facts for the manifest, which lists operator libraries per package."""
    apart = ("constants", "operators")
    optional = (
        "debug_handles",
        "left_float",
        "quantization",
        "narrowed",
        "listed",
        "warnings",
    )
    return {
        name: value
        for name, value in method.items()
        if name not in apart and (value or name not in optional)
    }
