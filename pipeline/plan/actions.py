"""Actions: the steps of a build, each a pure function of its key.

Differences between kinds of actions are in `plan/kinds/`. Nothing here reads a file or imports
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from pipeline.program.sources import MethodSource
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.models import MethodConfig

KindName = Literal["export", "quantize", "compile", "link", "validate"]


class ActionInputs(Protocol):
    """The inputs of an action of any kind.

    They contain everything that the action's key is made from, and everything that its worker needs
    to compute the same key.
    """

    @property
    def sources(self) -> Mapping[str, MethodSource]:
        """The methods whose programs are read, in the order of the model."""

    @property
    def configs(self) -> Mapping[str, MethodConfig]:
        """The lowering config of each method whose backends or quantizer run."""

    @property
    def references(self) -> Sequence[str]:
        """The user's passes and algorithms that run, as module:name."""

    @property
    def results(self) -> Sequence[Digest]:
        """The actions whose results are read."""

    def renewed(self, workspace: Workspace) -> ActionInputs:
        """Return the same inputs with the workspace's current files, passes and libraries."""


Inputs = TypeVar("Inputs")


@dataclass(frozen=True, eq=False, repr=False)  # see `moments.Feature`
class Action(Generic[Inputs]):
    """One step of a build: its key, and the inputs that the key is made from."""

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
        """The operator libraries that are loaded before the action runs."""
        key = self.key.get("measured", self.key)
        return list(key.get("operators", ()))

    @property
    def title(self) -> str:
        names = (self.package or self.model, self.method)
        return f"{self.kind} {'/'.join(name for name in names if name)}"


def unit_name(unit: Iterable[str]) -> str:
    return "+".join(unit)
