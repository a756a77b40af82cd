"""Records a unit's ETRecord entries when it is emitted, and joins them when a package is linked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plan.kinds.compile import CompileInputs
from pipeline.run.build.link import LinkedPackage
from pipeline.store.digest import Digest
from pipeline.store.files import ETRECORD
from pipeline.store.store import Store

if TYPE_CHECKING:  # these import torch, which linking new weights doesn't need
    from executorch.exir import ExecutorchProgramManager
    from torch.export import ExportedProgram


def record_entries(
    manager: ExecutorchProgramManager,
    inputs: CompileInputs,
    programs: Mapping[str, ExportedProgram],
    store: Store,
) -> dict[str, Any]:
    """Record the entries of an ETRecord if the config asks for one.

    The nodes of quantized methods get the lines of the current source.
    """
    from pipeline.features.etrecord.etrecord import map_current_lines, record_etrecord
    from pipeline.run.build.load import load_method

    if not inputs.emit.etrecord:
        return {}
    lines = {}
    for name in inputs.quantizes:
        lines[name] = map_current_lines(
            programs[name], load_method(inputs.sources[name], store)
        )
    return record_etrecord(manager, store, lines)


def write_etrecord(package: LinkedPackage) -> dict[str, Digest]:
    """Join the entries of a package's units into a file, and add it to the manifest.

    Returns the file's digest by its name, or {} if there are no entries.
    """
    entries = [unit["etrecord"] for unit in package.units.values() if unit["etrecord"]]
    if not entries:
        return {}
    from pipeline.features.etrecord.etrecord import join_etrecords

    etrecord = join_etrecords(entries, package.action.key["order"], package.store)
    package.manifest["etrecord"] = {"digest": etrecord.digest, "size": etrecord.size}
    return {ETRECORD: etrecord.digest}
