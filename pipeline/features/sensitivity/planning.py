"""Adds the figures of `doit sensitivity` to a package's report.

They are added as long as the package's files are the ones that were measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.digest import Digest
from pipeline.store.files import read_record
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.models import PackageConfig

FILE = "sensitivity.json"
AGAINST_FILE = "sensitivity-against.json"
FIELD = "sensitivity"  # in a report, and in the key of a validation
_SHOWN = ("methods", "bytes", "verified")


def summarize(config: PackageConfig, has_variables: bool) -> Json:
    """Return an empty summary: any package can be measured."""
    return {}


class SensitivityPlanning(Planning):
    """Makes a report again when the figures for it have changed."""

    def validate_facts(self, package: str, files: Files) -> Any:
        return [self._hash_file(package, name) for name in (FILE, AGAINST_FILE)]

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        digests = {}
        for name in (FILE, AGAINST_FILE):
            if self._read(package, name, files):
                digests[name] = self._hash_file(package, name)
        return {FIELD: digests} if digests else {}

    def add_to_record(self, package: str, files: Files) -> Json:
        figures: dict[str, Any] = {}
        if record := self._read(package, FILE, files):
            figures = {name: record.get(name) for name in _SHOWN}
        if record := self._read(package, AGAINST_FILE, files):
            figures["against"] = record.get("against")
        return {FIELD: figures} if figures else {}

    def _read(self, package: str, name: str, files: Files) -> Json:
        """Return the figures in a file next to a package, if they belong to the package's files."""
        record = read_record(self.plan.workspace.package(package) / name)
        if not isinstance(record, Mapping) or record.get("files") != dict(files):
            return {}
        return record

    def _hash_file(self, package: str, name: str) -> Digest | None:
        """Return the digest of a file of figures, or None if there is none."""
        workspace = self.plan.workspace
        path = workspace.package(package) / name
        if not os.path.lexists(path):  # true of most packages
            return None
        try:
            digest: Digest = workspace.file_digests.hash(path)
        except OSError:
            return None
        return digest


def describe_key(difference: Difference) -> str | None:
    """Describe a key difference that comes from new figures; return None for any other."""
    if difference.path[:2] == ("held_to", FIELD):
        return "`doit sensitivity` measured the package"
    return None
