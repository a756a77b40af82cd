"""Attestations of packages: in-toto statements with SLSA provenance, https://slsa.dev/provenance.

A statement contains no time, folder or user, so the same build has the same statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.store.revision import Revision

Json = Mapping[str, Any]
Digests = Mapping[str, str]  # of one content, keyed by in-toto's name of the algorithm

BUNDLE_SUFFIX = ".intoto.jsonl"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
PROJECT = "https://pypi.org/project/pte-pipeline/"
# Fields of a manifest that hold what the package's config or exporter asked for.
_PARAMETERS = ("package", "model", "target", "emit", "constant_methods")


def make_statement(
    subjects: Mapping[str, Digests], kind: str, predicate: Json
) -> dict[str, Any]:
    """Return a statement about files with these digests; `kind` is the predicate's URI."""
    return {
        "_type": STATEMENT,
        "subject": list(_describe_files(subjects)),
        "predicateType": kind,
        "predicate": dict(predicate),
    }


def make_provenance(
    manifest: Json,
    materials: Iterable[tuple[str, Digests]],
    revision: Revision | None,
    byproducts: Mapping[str, Digests],
    builder: Mapping[str, str],
) -> dict[str, Any]:
    """Return the SLSA provenance of a package.

    Args:
        materials: the files that the package was made from, with their digests.
        byproducts: the digests of the reports next to the package.
        builder: versions of this project, which built the package.
    """
    lowering = {name: each["lowering"] for name, each in manifest["methods"].items()}
    parameters = {name: manifest[name] for name in _PARAMETERS}
    if "family" in manifest:
        parameters["family"] = manifest["family"]
    return {
        "buildDefinition": {
            "buildType": f"{PROJECT}#package-v1",
            "externalParameters": {**parameters, "methods": lowering},
            "internalParameters": {
                "order": manifest["order"],
                "host": manifest["host"],
            },
            "resolvedDependencies": [
                *_describe_revision(revision),
                *(
                    {"name": name, "digest": dict(digests)}
                    for name, digests in materials
                ),
                *_describe_toolchain(manifest["toolchain"]),
            ],
        },
        "runDetails": {
            "builder": {"id": PROJECT, "version": dict(builder)},
            "metadata": {"invocationId": manifest["action"]},
            "byproducts": list(_describe_files(byproducts)),
        },
    }


def _describe_revision(revision: Revision | None) -> Iterator[dict[str, Any]]:
    if revision is not None:
        changed = {"annotations": {"changed": True}} if revision.changed else {}
        yield {"name": "workspace", "digest": {"gitCommit": revision.commit}, **changed}


def _describe_files(files: Mapping[str, Digests]) -> Iterator[dict[str, Any]]:
    for name, digests in sorted(files.items()):
        yield {"name": name, "digest": dict(digests)}


def _describe_toolchain(toolchain: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield libraries with their package URLs, and other tools with their digests."""
    for name, value in sorted(toolchain.items()):
        # Keys record a library that was edited after installation as `1.2, changed: <digest>`.
        version, _, changes = value.partition(", changed: ")
        if name.startswith("$") or name.endswith(
            "customize"
        ):  # a variable, or code that runs at Python's start
            yield {"name": name, "digest": {"blake3": value}}
        else:
            changed = {"digest": {"blake3": changes}} if changes else {}
            yield {"name": name, "uri": package_url(name, version), **changed}


def package_url(name: str, version: str) -> str:
    """Return the package URL of a library in a toolchain: https://github.com/package-url."""
    from packageurl import PackageURL

    kind = "generic" if name == "python" else "pypi"
    return PackageURL(kind, name=name, version=version).to_string()
