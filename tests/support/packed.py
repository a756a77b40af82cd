"""Packages of a few methods, compiled separately and linked as in a build, but without one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pipeline.compile.emit import emit
from pipeline.compile.inspect.constants import describe_constants
from pipeline.compile.lower import lower
from pipeline.compile.objects import MethodObject, make_object
from pipeline.config.emission import EmitConfig
from pipeline.features.inspection.contents import describe_contents
from pipeline.features.inspection.link import _named_keys
from pipeline.store.store import Store
from tests.support.linking import link


@dataclass
class Compiled:
    """The object of a method and the record of its constants, after a round trip through JSON."""

    method: MethodObject
    constants: Mapping[str, Any]


@dataclass
class Packed:
    """The files of a package, and the record of each method's constants."""

    files: dict[str, Path]
    constants: dict[str, Any]
    keys: dict[str, list[str]]

    def contents(self) -> dict[str, Any]:
        return describe_contents(self.files, self.constants, self.keys)


def compiled(
    store: Store, name: str, program: ExportedProgram, partitioners: Any, **settings: Any
) -> Compiled:
    """Compile a method; `settings` are the fields of `emit` in a config."""
    lowered = lower({name: program}, {name: partitioners})
    told = json.loads(json.dumps(describe_constants(program, lowered.exported_program(name))))
    return Compiled(make_object(emit(lowered, EmitConfig(**settings)), store), told)


def linked(
    store: Store,
    methods: Mapping[str, Compiled],
    constant_methods: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
) -> Packed:
    objects = [each.method for each in methods.values()]
    files = link(objects, constant_methods or {}, store, list(methods), layout)
    paths = {"model.pte": store.verified_path(files.pte.digest)}
    paths |= {f"{stem}.ptd": store.verified_path(b.digest) for stem, b in files.ptds.items()}
    return Packed(
        paths,
        {name: each.constants for name, each in methods.items()},
        {name: _named_keys(each.method.to_json(), name) for name, each in methods.items()},
    )


def pack(
    root: Path, programs: Mapping[str, ExportedProgram], partitioners: Mapping[str, Any]
) -> Packed:
    store = Store(root / "store")
    methods = {n: compiled(store, n, p, partitioners[n]) for n, p in programs.items()}
    return linked(store, methods)
