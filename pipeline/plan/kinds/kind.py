"""What differs between the kinds of actions, as one record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.plan.actions import Action, KindName
from pipeline.plan.kinds.parts import Key
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.models import MethodConfig

Result = Mapping[str, Any]
Fields = Mapping[str, Any]
MistakeAndRemedy = tuple[str, str]


class Kind(NamedTuple):
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
        plan: of a kind that a feature brings, returns the action of a method, by the fields of its
            inputs.
        find_mistakes: of such a kind, yields what is wrong between a method's config and its
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
