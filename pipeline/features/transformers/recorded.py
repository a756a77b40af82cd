"""The record that an export by transformers' exporters leaves in its program.

It names the patches of torch and ExecuTorch that must be in force while the program is lowered, and
holds what transformers' `ExportedModel` needs.

The record is in the metadata of the program's graph, which an archive keeps, so it is part of the
program's digest: with another release of transformers or other patches, compiles have other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.errors import SourceError

# transformers' own names: an archive selects among them, and can't name code.
PATCHES = ("executorch", "executorch.xnnpack")
_CUSTOM, _KEY = "custom", "transformers"


def write_record(metadata: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Add a record to the metadata of a program's graph (`program.graph_module.meta`).

    Args:
        record: JSON: the `version` of transformers, names of `patches`, the `component` that the
            method is, and its `metadata`, an `ExportMetadata` of transformers.
    """
    metadata[_CUSTOM] = {**metadata.get(_CUSTOM, {}), _KEY: dict(record)}


def read_record(method: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of a program, or None if transformers did not export it.

    Raises SourceError for a record that no export of this package writes.
    """
    custom = metadata.get(_CUSTOM)
    record = custom.get(_KEY) if isinstance(custom, dict) else None
    if record is None:
        return None
    patches = record.get("patches") if isinstance(record, dict) else None
    if not isinstance(patches, list) or not isinstance(record.get("version"), str):
        raise SourceError(
            f"{method}: its archive names no patches and version of transformers; export it again"
        )
    if unknown := [str(name) for name in patches if name not in PATCHES]:
        raise SourceError(
            f"{method}: its archive names unknown patches of transformers, {', '.join(unknown)}; "
            f"known: {', '.join(PATCHES)}"
        )
    return record
