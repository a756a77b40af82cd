"""Actions: what a build does, each a pure function of its key.

An action's inputs say where a worker finds what the key describes by content. They are plain data
that can be pickled. Nothing here reads a file or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from pipeline.program.sources import MethodSource
from pipeline.store import digest
from pipeline.store.digest import Digest

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import QuantizeConfig
    from pipeline.config.emission import EmitConfig
    from pipeline.config.models import MethodConfig, PackageConfig
    from pipeline.plan.declared import Declared
    from pipeline.plan.reads import Surroundings

KindName = Literal["export", "quantize", "compile", "link", "validate"]
Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Action(Generic[Inputs]):
    """One step of a build: its key, and where its inputs are."""

    kind: KindName
    model: str
    package: str | None
    method: str | None
    key: Mapping[str, Any]
    inputs: Inputs

    @cached_property
    def digest(self) -> Digest:
        return digest.hash_json(self.key)

    @property
    def libraries(self) -> list[str]:
        """The libraries of operators that are loaded before it runs."""
        key = self.key.get("measured", self.key)
        return list(key.get("operators", ()))

    @property
    def title(self) -> str:
        names = (self.package or self.model, self.method)
        return f"{self.kind} {'/'.join(name for name in names if name)}"


@dataclass(frozen=True)
class ExportInputs:
    """The exporter's path in the workspace, the process that planned its export, and what its last
    run did that can't be followed, a line each: with any, it runs again in each run. `parameters`
    are those of `export_methods`, which the action's name holds."""

    path: str
    surroundings: Surroundings
    declared: Declared | None = None
    unfollowed: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QuantizeInputs:
    """The method's source and how it is lowered."""

    source: MethodSource
    config: MethodConfig

    @property
    def spec(self) -> QuantizeConfig:
        """The quantizer's options."""
        assert self.config.quantize is not None
        return self.config.quantize


@dataclass(frozen=True)
class CompileInputs:
    """The methods of a unit, in the order of the model, the quantize actions of those that are
    quantized, and whether only others have partitioners (`PackageConfig.delegates_beside`)."""

    sources: Mapping[str, MethodSource]
    quantizes: Mapping[str, Action[QuantizeInputs]]
    configs: Mapping[str, MethodConfig]
    emit: EmitConfig
    delegates_beside: bool = False


class FamilyObjects(NamedTuple):
    """The compile actions, by package and unit, of what decides on the files that a family shares,
    and their digest."""

    digest: Digest
    compiles: Mapping[str, Mapping[str, Digest]]


NO_OBJECTS = FamilyObjects(digest.hash_json({}), {})


@dataclass(frozen=True)
class LinkInputs:
    """The digests of the actions that a package is linked from, by unit and by method, and facts
    for its manifest.

    Attributes:
        lowering: the resolved configs of the methods, with the digests of their files.
        programs: the digests of the methods' programs.
        host: the facts of the machine that calibrates, or None where no method is calibrated.
        family: the compile actions, by package and unit, of what decides on shared files.
    """

    compiles: Mapping[str, Digest]
    quantizes: Mapping[str, Digest]
    lowering: Mapping[str, Mapping[str, Any]]
    emit: Mapping[str, Any]
    programs: Mapping[str, Digest]
    host: Mapping[str, Any] | None
    family: Mapping[str, Mapping[str, Digest]] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidateInputs:
    """The programs that a package is validated against, and its config, by which a method that
    fails is lowered again; `places` are file and line of settings, by their path in it, and
    `quotable` digests of the files of the workspace that the programs were exported from and of
    the configs, whose lines reports quote; `family` are digest and size in bytes of the files of
    each package of its family, by name."""

    sources: Mapping[str, MethodSource]
    places: Mapping[str, str]
    quotable: Mapping[str, Digest]
    config: PackageConfig
    family: Mapping[str, Mapping[str, tuple[str, int]]] = field(default_factory=dict)


def unit_name(unit: Iterable[str]) -> str:
    return "+".join(unit)
