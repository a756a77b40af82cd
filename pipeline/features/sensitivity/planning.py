"""Adds the figures of `doit sensitivity` to a package's report, as long as its files are those that
were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.digest import Digest
from pipeline.store.files import read_record
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.models import PackageConfig

FILE = "sensitivity.json"
FIELD = "sensitivity"  # of a report, and of the key of a validation
_SHOWN = ("methods", "bytes", "verified")


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return an empty summary of a config that quantizes a method whose modules can be kept in
    float; None for others."""
    for method in config.methods.values():
        if hasattr(method.quantize, "modules"):
            return {}
    return None


class SensitivityPlanning(Planning):
    """Makes a report again when there are other figures for it."""

    def validate_facts(self, package: str, files: Files) -> Any:
        return self._hash_file(package)

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        if self.add_to_record(package, files):
            return {FIELD: self._hash_file(package)}
        return {}

    def add_to_record(self, package: str, files: Files) -> Json:
        record = read_record(self.plan.workspace.package(package) / FILE)
        if not isinstance(record, Mapping) or record.get("files") != dict(files):
            return {}
        return {FIELD: {name: record.get(name) for name in _SHOWN}}

    def _hash_file(self, package: str) -> Digest | None:
        """Return the digest of a package's figures; None where it has none."""
        workspace = self.plan.workspace
        try:
            digest: Digest = workspace.file_digests.hash(
                workspace.package(package) / FILE
            )
        except OSError:
            return None
        return digest


def describe_key(difference: Difference) -> str | None:
    """Describe that other figures are to be shown; None for any other difference."""
    if difference.path[:2] == ("held_to", FIELD):
        return "`doit sensitivity` measured the package"
    return None
