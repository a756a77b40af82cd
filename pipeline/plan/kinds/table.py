"""The table of the kinds of actions, of the core and of features."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from pipeline.moments import find_functions, load
from pipeline.plan.kinds.compile import CompileInputs, compile_key, describe_compile
from pipeline.plan.kinds.export import (
    describe_export,
    export_key,
    find_exported_blobs,
    read_export,
)
from pipeline.plan.kinds.kind import Kind
from pipeline.plan.kinds.link import LinkInputs, describe_link, link_key
from pipeline.plan.kinds.validate import ValidateInputs, describe_validate, validate_key
from pipeline.store.pieces import blobs_of_files

_CORE = (
    Kind(
        "export",
        key=export_key,
        read=read_export,
        describe=describe_export,
        blobs=find_exported_blobs,
    ),
    Kind(
        "compile",
        key=compile_key,
        read=lambda fields: CompileInputs(**fields),
        describe=describe_compile,
        blobs=itemgetter("blobs"),
        subsumes=True,
    ),
    Kind(
        "link",
        key=link_key,
        read=lambda fields: LinkInputs(**fields),
        describe=describe_link,
        blobs=blobs_of_files,
        installed=True,
        subsumes=True,
    ),
    Kind(
        "validate",
        key=validate_key,
        read=lambda fields: ValidateInputs(**fields),
        describe=describe_validate,
        blobs=blobs_of_files,
        installed=True,
    ),
)


def _collect_kinds() -> dict[str, Kind]:
    """Return all kinds by name."""
    kinds: dict[str, Kind] = {kind.name: kind for kind in _CORE}
    for name, reference in find_functions("kinds").items():
        kinds[name] = load(reference)()
    return kinds


KINDS: Mapping[str, Kind] = _collect_kinds()
