"""Results of compile actions in the store, which linking and the manifest take from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.compile.objects import MethodObject, parse_object
from pipeline.store.digest import Digest

Json = Mapping[str, Any]


@dataclass(frozen=True)
class CompiledMethod:
    """Facts of a method that is compiled, as JSON.

    Attributes:
        delegation: as `describe_delegation` returns it.
        signature: a `MethodSpec`.
        instructions: which instruction gives which node of the program that was lowered (the
            quantized one where there is one), as `Instructions`.
        debug_handles: of what Python runtimes run, each with the place of its node in the source
            program. A place, as the line of the source may change where the program doesn't.
        left_float: the operators in control flow of a quantized method that are not quantized.
        constants: the names of constants, as `describe_constants` gives them.
    """

    delegation: Json
    signature: Json
    instructions: Json
    debug_handles: Sequence[tuple[int, int]]
    left_float: int
    constants: Json

    def manifest(self) -> dict[str, Any]:
        """Return what a manifest says of the method."""
        facts = {name: value for name, value in vars(self).items() if name != "constants"}
        optional = ("debug_handles", "left_float")
        return {name: each for name, each in facts.items() if each or name not in optional}


@dataclass(frozen=True)
class CompiledUnit:
    """The object of a compile unit, what is known of its methods, and the entries of an ETRecord
    (`compile.etrecord.record`) where that is wanted."""

    object: MethodObject
    methods: Mapping[str, CompiledMethod]
    etrecord: Mapping[str, Json]

    @property
    def blobs(self) -> list[Digest]:
        """The blobs that the unit needs, sorted."""
        entries = {entry["digest"] for entry in self.etrecord.values()}
        return sorted({*(blob.digest for blob in self.object.blobs()), *entries})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "blobs": self.blobs}

    @classmethod
    def from_json(cls, data: Json) -> CompiledUnit:
        methods = {name: CompiledMethod(**each) for name, each in data["methods"].items()}
        return cls(parse_object(data["object"]), methods, data["etrecord"])
