"""The table of what differs between the kinds of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pipeline.plan.actions import KindName
from pipeline.plan.kinds.compile import CompileInputs, compile_key, describe_compile
from pipeline.plan.kinds.export import (
    describe_export,
    export_key,
    find_exported_blobs,
    read_export,
)
from pipeline.plan.kinds.link import LinkInputs, describe_link, link_key
from pipeline.plan.kinds.parts import Key
from pipeline.plan.kinds.quantize import QuantizeInputs, describe_quantize, quantize_key
from pipeline.plan.kinds.validate import ValidateInputs, describe_validate, validate_key
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference
from pipeline.store.pieces import blobs_of_files

Result = Mapping[str, Any]
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of action.

    Attributes:
        key: returns the key of inputs, as this process makes it.
        read: returns inputs by their fields, which are JSON but for a config and sources.
        describe: returns words for a difference of a field that only keys of this kind have, ""
            for one that is not worth a line, and None for any other. It is given the name of the
            model's source, too.
        blobs: yields the blobs of the store that a result needs to be of use.
        installed: whether its result is files, which are put into the package's folder.
        subsumes: whether a result in the store makes the actions before it superfluous.
    """

    name: KindName
    key: Callable[[Any], Key]
    read: Callable[[Fields], Any]
    describe: Callable[[Difference, str], str | None]
    blobs: Callable[[Result], Iterable[Digest]]
    installed: bool = False
    subsumes: bool = False


_ROWS = (
    Kind(
        "export",
        key=export_key,
        read=read_export,
        describe=describe_export,
        blobs=find_exported_blobs,
    ),
    Kind(
        "quantize",
        key=quantize_key,
        read=lambda fields: QuantizeInputs(**fields),
        describe=describe_quantize,
        blobs=itemgetter("blobs"),
    ),
    Kind(
        "compile",
        key=compile_key,
        read=lambda fields: CompileInputs(**fields),
        describe=describe_compile,
        blobs=itemgetter("blobs"),
        subsumes=True,
    ),
    Kind(
        "link",
        key=link_key,
        read=lambda fields: LinkInputs(**fields),
        describe=describe_link,
        blobs=blobs_of_files,
        installed=True,
        subsumes=True,
    ),
    Kind(
        "validate",
        key=validate_key,
        read=lambda fields: ValidateInputs(**fields),
        describe=describe_validate,
        blobs=blobs_of_files,
        installed=True,
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ROWS}  # in the order of a run
