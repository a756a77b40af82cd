"""Link actions: the objects of a package become one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import NOTHING, Key, common_fields
from pipeline.plan.kinds.words import describe_setting
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest, hash_json
from pipeline.store.json_diff import Difference
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.models import PackageConfig

Json = Mapping[str, Any]
# Compile actions by package and unit.
PackageCompiles = Mapping[str, Mapping[str, Digest]]


@dataclass(frozen=True, eq=False, repr=False)  # generating __eq__ and __repr__ is slow
class LinkInputs:
    """The inputs of a link: plain values, so that a worker links without parsing the config.

    The fields from `quantizes` on are for the manifest.

    Attributes:
        file: the name of the .pte, without its suffix.
        order: the methods, in the order of the model.
        compiles: the compile actions, by unit.
        constant_methods: names and values.
        allow_none: the methods that may have nothing delegated or quantized.
        additions: further fields of the key, which features add.
        metadata: what the package states about its build, if anything.
        quantizes: the quantize actions, by method.
        lowering: the resolved configs of the methods, with the digests of their files.
        emit: the resolved settings of `emit`.
        programs: the digests of the methods' programs.
        host: the facts about the machine that calibrates, or None if no method is calibrated.
        related_compiles: compile actions of other packages that the link reads, by package and
            unit.
    """

    package: str = ""
    model: str = ""
    target: str | None = None
    file: str = ""
    order: Sequence[str] = ()
    layout: Json = field(default_factory=dict)
    compiles: Mapping[str, Digest] = field(default_factory=dict)
    constant_methods: Sequence[Sequence[Any]] = ()
    allow_none: Sequence[str] = ()
    additions: Json = field(default_factory=dict)
    metadata: Json | None = None
    quantizes: Mapping[str, Digest] = field(default_factory=dict)
    lowering: Mapping[str, Json] = field(default_factory=dict)
    emit: Json = field(default_factory=dict)
    programs: Mapping[str, Digest] = field(default_factory=dict)
    host: Json | None = None
    related_compiles: PackageCompiles = field(default_factory=dict)

    sources: ClassVar[Mapping[str, MethodSource]] = NOTHING
    configs: ClassVar[Mapping[str, Any]] = NOTHING
    references: ClassVar[Sequence[str]] = ()

    @property
    def results(self) -> Sequence[Digest]:
        objects = list(self.compiles.values())
        for compiles in self.related_compiles.values():
            objects += compiles.values()
        return list(dict.fromkeys(objects))

    def renewed(self, workspace: Workspace) -> LinkInputs:
        """Return the same inputs: linking reads no file, and runs no user code."""
        return self


def describe_package(
    config: PackageConfig,
    compiles: Sequence[Action[CompileInputs]],
    quantizes: Mapping[str, Action],
    methods: Mapping[str, MethodSource],
    additions: Json = NOTHING,
    related_compiles: PackageCompiles = NOTHING,
    revision: str = "",
) -> LinkInputs:
    """Return the inputs of the link of a package.

    Args:
        additions: the fields that features add to the key.
        related_compiles: in the form of `LinkInputs.related_compiles`.
        revision: the commit that the package's metadata name, or "".
    """
    names = sorted(name for name, method in config.methods.items() if method.allow_none)
    constants = [[name, value] for name, value in config.constant_methods.items()]
    hosts = [
        action.key["host"] for action in quantizes.values() if "host" in action.key
    ]
    return LinkInputs(
        package=config.package,
        model=config.model,
        target=config.target,
        file=config.stem,
        order=list(methods),
        layout=config.emit.layout.resolved(),
        compiles={str(action.method): action.digest for action in compiles},
        constant_methods=constants,
        allow_none=names,
        additions=additions,
        metadata=_describe_metadata(config, revision),
        quantizes={name: action.digest for name, action in quantizes.items()},
        lowering=_describe_lowering(config, compiles),
        emit=config.emit.resolved(),
        programs={name: source.program for name, source in methods.items()},
        host=hosts[0] if hosts else None,
        related_compiles=related_compiles,
    )


def _describe_metadata(config: PackageConfig, revision: str) -> Json | None:
    if not config.emit.metadata:
        return None
    settings = config.resolved()
    del settings["validate"]
    return {"config": hash_json(settings), "revision": revision or None}


def _describe_lowering(
    config: PackageConfig, compiles: Sequence[Action[CompileInputs]]
) -> dict[str, Json]:
    """Return the resolved configs of the methods, with the digests of their files."""
    lowering: dict[str, Json] = {}
    keyed: dict[str, Json] = {}
    for action in compiles:
        keyed |= action.key["methods"]
    for name, method in config.methods.items():
        if "files" in keyed[name]:
            files = {"files": keyed[name]["files"]}
        else:
            files = {}
        lowering[name] = method.resolved() | files
    return lowering


def link_action(inputs: LinkInputs) -> Action[LinkInputs]:
    """Return the action that links a package."""
    return Action(
        "link",
        inputs.model,
        inputs.package,
        None,
        link_key(inputs),
        inputs,
    )


def link_key(inputs: LinkInputs) -> Key:
    """Return the key of a link.

    It names compile actions, not their objects, so a fresh checkout finds the package without
    looking at any object. Methods are linked in the order of the model.
    """
    key: Key = {
        **common_fields("link"),
        "package": inputs.package,
        "model": inputs.model,
        "target": inputs.target,
        "file": inputs.file,
        "order": inputs.order,
        "layout": inputs.layout,
        "compiles": inputs.compiles,
        "constant_methods": inputs.constant_methods,
    }
    optional = {
        "allow_none": inputs.allow_none,
        **inputs.additions,
        "metadata": inputs.metadata,
    }
    return key | {name: value for name, value in optional.items() if value}


def describe_link(difference: Difference, file: str) -> str | None:
    """Describe a difference in a field that only link keys have; return None for any other."""
    match difference.path:
        case ("compiles", unit):
            return f"method {unit} {difference.change('was added', 'was left out')}"
        case ("metadata", "revision") if difference.old and difference.new:
            return f"the commit in metadata: {difference.values}"
        case ("metadata", "revision"):
            return describe_setting("emit.metadata_revision", difference)
        case ("metadata", "config"):
            return "the config, whose digest is in metadata, changed"
        case ("metadata", *_):
            return describe_setting("emit.metadata", difference)
        case ("etrecord",):
            return describe_setting("emit.etrecord", difference)
    return None
