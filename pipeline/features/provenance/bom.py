"""A package's bill of materials: a CycloneDX ML-BOM, https://cyclonedx.org/capabilities/mlbom."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pipeline.features.provenance.attestation import PROJECT, Digests, package_url
from pipeline.store.digest import hash_json

Json = Mapping[str, Any]

BOM = "https://cyclonedx.org/bom"
BOM_SUFFIX = ".cdx.json"
CLOCK = "SOURCE_DATE_EPOCH"  # https://reproducible-builds.org/specs/source-date-epoch
_HASHES = {"sha256": "SHA-256", "blake3": "BLAKE3"}


def make_bom(
    manifest: Json, files: Mapping[str, Digests], figures: Json, version: str
) -> dict[str, Any]:
    """Return the bill of materials of a package, in CycloneDX 1.6.

    It has a time only if the environment sets one, and its serial number is derived from its
    content.

    Args:
        files: the digests of the package's files.
        figures: by method, the figures measured: text by name, such as its SQNR.
        version: the version of this project, which built the package.
    """
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    libraries = {
        n: v for n, v in manifest["toolchain"].items() if not n.startswith("$")
    }
    tools = [
        _library(n, v)
        for n, v in sorted({**libraries, "pte-pipeline": version}.items())
    ]
    package, parts = _package(manifest), list(_parts(manifest, files))
    metadata = BomMetaData(component=package, tools=ToolRepository(components=tools))
    bom = Bom(metadata=metadata, components=parts)
    bom.register_dependency(package, parts)
    made: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    made["metadata"]["component"]["modelCard"] = _describe_model(manifest, figures)
    # The library's values are random and the current time, so no two bills would be equal.
    for name in ("serialNumber", "timestamp"):
        (made if name in made else made["metadata"]).pop(name, None)
    made["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, PROJECT + hash_json(made))}"
    # Eleven digits reach the year 5138; from the year 10000 on, `fromtimestamp` raises.
    if (given := os.environ.get(CLOCK, "")).isdecimal():
        now = datetime.fromtimestamp(int(given[:11]), UTC)
        made["metadata"]["timestamp"] = now.isoformat().replace("+00:00", "Z")
    return made


def _package(manifest: Json) -> Any:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType

    facts = {"model": manifest["model"], "target": manifest["target"]}
    for name, method in manifest["methods"].items():
        facts[f"method:{name}"] = (
            ", ".join(method["delegation"]["partitions"]) or "portable"
        )
    said = [
        Property(name=f"pte-pipeline:{n}", value=value)
        for n, value in facts.items()
        if value
    ]
    kind = ComponentType.MACHINE_LEARNING_MODEL
    return Component(
        type=kind, name=manifest["package"], bom_ref="package", properties=said
    )


def _parts(manifest: Json, files: Mapping[str, Digests]) -> Iterator[Any]:
    """Yield the files of a package, and the libraries that an app links to run it."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    for name, digests in sorted(files.items()):
        hashes = [
            HashType(alg=HashAlgorithm(_HASHES[n]), content=d)
            for n, d in digests.items()
        ]
        yield Component(
            type=ComponentType.FILE, name=name, bom_ref=f"file:{name}", hashes=hashes
        )
    yield _library("executorch", manifest["toolchain"]["executorch"], "runtime:")
    for library in manifest.get("operators", ()):
        digests = {"blake3": library["digest"]} if "digest" in library else {}
        yield Component(
            type=ComponentType.LIBRARY,
            name=library["name"],
            version=library.get("version"),
            bom_ref=f"operators:{library['name']}",
            hashes=[
                HashType(alg=HashAlgorithm(_HASHES[n]), content=d)
                for n, d in digests.items()
            ],
        )


def _library(name: str, identity: str, prefix: str = "") -> Any:
    """Return a library of a toolchain, marked if it was changed after installation."""
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    version, _, changes = identity.partition(", changed: ")
    url = package_url(name, version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=PackageURL.from_string(url),
        bom_ref=f"{prefix}{url}",
        properties=[Property(name="pte-pipeline:changed", value=changes)]
        if changes
        else [],
    )


def _describe_model(manifest: Json, figures: Json) -> dict[str, Any]:
    """Return the model card as plain JSON, because the library doesn't support it yet."""
    inputs, outputs = [], []
    for name, method in manifest["methods"].items():
        own = method.get("signature", {"args": [], "kwargs": [], "outputs": None})
        trees = [tree for _, tree in (*own["args"], *own["kwargs"])]
        inputs += [f"{name}: {leaf}" for leaf in _leaves(trees)]
        outputs += [f"{name}: {leaf}" for leaf in _leaves(own["outputs"])]
    metrics = [
        {"type": kind, "value": value, "slice": method}
        for method, own in figures.items()
        for kind, value in own.items()
    ]
    return {
        "modelParameters": {
            "modelArchitecture": manifest["model"],
            "inputs": [{"format": each} for each in inputs],
            "outputs": [{"format": each} for each in outputs],
        },
        **(
            {"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}
        ),
    }


def _leaves(tree: Any) -> Iterable[str]:
    """Yield the leaves of a signature's tree, such as `x float32[1,3,2..8]`."""
    if isinstance(tree, list):
        for each in tree:
            yield from _leaves(each)
    elif isinstance(tree, dict):
        sizes = ",".join(map(_describe_size, tree.get("sizes", ())))
        yield (
            f"{tree['name']} {tree['dtype']}[{sizes}]"
            if "dtype" in tree
            else tree["name"]
        )


def _describe_size(size: Any) -> str:
    if isinstance(size, dict):
        return f"{size['min']}..{'' if size['max'] is None else size['max']}"
    return str(size)
