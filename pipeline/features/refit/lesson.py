"""Learns from a compilation where a unit's weights went, and records the recipe."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.features.refit.expectations import expect_refits
from pipeline.features.refit.learn import check_alike, find_gap, make_recipe
from pipeline.features.refit.programs import (
    Json,
    Programs,
    find_programs,
    open_sources,
    structure_key,
)
from pipeline.features.refit.refit import why_never
from pipeline.features.refit.unit import (
    CannotRefitError,
    Recipe,
    check_keys,
    keep_digest,
    refit,
)
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import Key
from pipeline.run.build.listening import CompileListener, UnloweredMethod
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.features.refit.watch import Watch

_MOST_MISSES = 3
_log = logging.getLogger(__name__)


def begin_lesson(action: Action[CompileInputs], workspace: Workspace) -> Lesson | None:
    """Return the `Lesson` for a unit that is about to be compiled, or None."""
    return Lesson.begin(action, workspace) if workspace.refit else None


class Lesson(CompileListener):
    """Learns how a unit's weights are stored, from one compilation.

    Attributes:
        found: the record of a compilation with other weights; None before the first.
        watch: the watch of this compilation.
    """

    def __init__(
        self,
        action: Action[CompileInputs],
        workspace: Workspace,
        programs: Programs,
        key: Key,
        found: ActionEntry | None,
        watch: Watch,
    ) -> None:
        self.action = action
        self.workspace = workspace
        self.programs = programs
        self.key = key
        self.found = found
        self.watch = watch

    @classmethod
    def begin(
        cls, action: Action[CompileInputs], workspace: Workspace
    ) -> Lesson | None:
        """Return the lesson for a unit that is about to be compiled, or None."""
        if why_never(action):
            return None
        programs = find_programs(action, workspace.store)
        key = structure_key(action, programs, workspace.store)
        record = workspace.store.get_by_key(key)
        if record is not None and record.result["misses"] >= _MOST_MISSES:
            return None  # it misses each time; without a lesson, the store's partitions are used
        from pipeline.features.refit.watch import Watch

        return cls(action, workspace, programs, key, record, Watch())

    @property
    def earlier(self) -> Digest | None:
        """The action of a compilation with other weights, or None."""
        if self.found is None or self.found.result["base"] == self.action.digest:
            return None
        return Digest(self.found.result["base"])

    @property
    def forgoes_cache(self) -> bool:
        # At first, a partition in the store is worth more than a lesson about it.
        return self.earlier is not None

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Register the constants of methods, as they are in their archives, with the watch."""
        for method, loaded in methods.items():
            program = loaded.program
            kinds = {"weights": program.state_dict, "constants": program.constants}
            for kind, tensors in kinds.items():
                for name, tensor in tensors.items():
                    self.watch.add_source(tensor, method, kind, name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        from pipeline.features.refit.hooks import watched

        with watched(self.watch):
            yield

    def end(self, result: Json, peak: int) -> None:
        """Record what was learned."""
        before: Json = self.found.result if self.found else {"why": "", "misses": 0}
        record: dict[str, Any] = {
            "base": self.action.digest,
            "proven": False,
            "why": "",
            "misses": before["misses"],
            "recipe": None,
        }
        try:
            recipe = self._prove(result)
            record |= {"proven": True, "recipe": vars(recipe), "why": before["why"]}
        except CannotRefitError as reason:
            if self.found is not None and self.earlier is None:
                return  # what was learned from the same weights still holds
            record["why"] = str(reason)
            if self.found is not None:
                _log.warning(
                    "%s: its recipe is not kept, since %s", self.action.title, reason
                )
        self.workspace.store.put_result(self.key, record, peak=peak)
        expect_refits(self.action, self.workspace.store, record["proven"])

    def _prove(self, result: Json) -> Recipe:
        """Return the recipe of a result.

        Raises CannotRefitError if the recipe doesn't reproduce this result. If part of the
        compilation was not seen, it is also raised if there was no compilation with other weights,
        or if that result differs from this one in more than weights.
        """
        watch = self.watch
        store = self.workspace.store
        with open_sources(self.action, self.workspace, self.programs) as sources:
            described = {
                digest: [view.to_json() if view else None for view in views]
                for digest, views in watch.described.items()
            }
            recipe = make_recipe(
                watch.steps, watch.guards, watch.stored, described, result, sources
            )
            repeated = refit(recipe, result, sources, store.read, keep_digest)
            check_keys(recipe, result["object"], store.read)
            if repeated != result:
                raise CannotRefitError(
                    "repeating the recorded steps gives a different object"
                )
        gap = find_gap(watch.gaps, watch.stored, watch.described, result)
        if gap and self.earlier is None:
            raise CannotRefitError(gap)
        if gap and self.earlier is not None:
            before = store.get(self.earlier)
            if before is None:
                raise CannotRefitError(
                    "the object compiled before is no longer in the store"
                )
            check_alike(before.result, result, recipe, store.read)
        return recipe
