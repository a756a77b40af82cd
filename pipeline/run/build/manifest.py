"""The manifest of a package: what is in it and what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.plan.actions import Action, LinkInputs
from pipeline.run.build.compiled import CompiledUnit
from pipeline.store.digest import hash_json

MANIFEST_FORMAT = 1


def make_manifest(
    action: Action[LinkInputs], compiled: Mapping[str, CompiledUnit], files: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest, which holds neither times nor paths nor names of machines.

    Args:
        action: the link action.
        compiled: the compile units by name.
        files: the digest and the size in bytes of each file.
    """
    inputs = action.inputs
    methods = {
        name: {
            "program": inputs.programs[name],
            "unit": unit,
            "lowering": inputs.lowering[name],
            "quantized": inputs.quantizes.get(name),
            **method.manifest(),
        }
        for unit, result in compiled.items()
        for name, method in result.methods.items()
    }
    objects = {}
    for unit, result in compiled.items():
        parts = result.object.to_json()
        compile_digest = inputs.compiles[unit]
        objects[unit] = {"action": compile_digest, "object": hash_json(parts), "parts": parts}
    return {
        "format": MANIFEST_FORMAT,
        "package": action.package,
        "model": action.model,
        "target": action.key["target"],
        "action": action.digest,
        "toolchain": action.key["toolchain"],
        "host": inputs.host,  # where it can matter: a calibration's last bits depend on it
        "emit": inputs.emit,
        "constant_methods": dict(action.key["constant_methods"]),
        "order": action.key["order"],
        "methods": methods,
        "objects": objects,
        "files": files,
    }
