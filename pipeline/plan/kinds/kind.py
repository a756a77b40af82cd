"""The record of everything that differs between kinds of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.plan.actions import Action, KindName
from pipeline.plan.kinds.parts import Key
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.models import MethodConfig

Result = Mapping[str, Any]
Fields = Mapping[str, Any]
MistakeAndRemedy = tuple[str, str]


class Kind(NamedTuple):
    """One kind of action.

    Attributes:
        key: returns the key of inputs, computed by this process.
        read: returns inputs from their fields, which are JSON except for a config and sources.
        describe: returns words for a difference in a field that only keys of this kind have, "" if
            it isn't worth a line, and None for any other field. Also takes the name of the model's
            source.
        blobs: yields the blobs without which a result is useless.
        installed: whether the result is files, which are put into the package's folder.
        subsumes: whether a result in the store makes the preceding actions superfluous.
        plan: for a kind that a feature adds, returns the action of a method, from the fields of its
            inputs.
        find_mistakes: for such a kind, yields disagreements between a method's config and its
            source.
    """

    name: KindName
    key: Callable[[Any], Key]
    read: Callable[[Fields], Any]
    describe: Callable[[Difference, str], str | None]
    blobs: Callable[[Result], Iterable[Digest]]
    installed: bool = False
    subsumes: bool = False
    plan: Callable[..., Action] | None = None
    find_mistakes: (
        Callable[[MethodConfig, MethodSource], Iterable[MistakeAndRemedy]] | None
    ) = None
