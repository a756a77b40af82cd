"""Packages of a few methods, compiled apart and linked as a build does it, without the build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import EmitConfig
from pipeline.constant_names import constants_of
from pipeline.contents import contents_of
from pipeline.emission import emit
from pipeline.link import link
from pipeline.lowering import lower
from pipeline.objects import make_object
from pipeline.report_record import ContentsRecord
from pipeline.store import Store


@dataclass
class Packed:
    """Its files, and what compile tells of the constants and named data of each method."""

    files: dict[str, Path]
    constants: dict[str, Any]
    keys: dict[str, list[str]]

    def contents(self) -> ContentsRecord:
        return contents_of(self.files, self.constants, self.keys)


def pack(
    root: Path,
    programs: Mapping[str, Any],
    partitioners: Mapping[str, Any],
    constant_methods: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Packed:
    """`settings` are those of `emit` in a config."""
    store = Store(root / "store")
    objects, constants, keys = [], {}, {}
    for name, program in programs.items():
        lowered = lower({name: program}, {name: partitioners[name]})
        told = constants_of(program, lowered.exported_program(name))
        constants[name] = json.loads(json.dumps(told))
        objects.append(make_object(emit(lowered, EmitConfig(**settings)), store))
        keys[name] = objects[-1].keys_of(name)
    linked = link(objects, constant_methods or {}, store, list(programs), layout)
    files = {"model.pte": store.known_path(linked.pte.digest)}
    files |= {f"{stem}.ptd": store.known_path(b.digest) for stem, b in linked.ptds.items()}
    return Packed(files, constants, keys)
