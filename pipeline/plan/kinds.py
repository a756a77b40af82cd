"""The kinds of actions: one table of what differs between them, for whoever plans and runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan import status
from pipeline.plan.actions import Action, KindName, unit_name
from pipeline.plan.keys import exported_blobs
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.store.digest import Digest

Unit = Sequence[str]
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of action.

    Functions take the plan, the package (for an export, the model) and the unit: the methods that
    are compiled together, or the one that is quantized; otherwise empty.

    Attributes:
        action: returns the action, or None while it can't be known.
        status: returns the action's status. Raises SourceError for a model that can't be read.
        blobs: yields the blobs of the store that a result needs to be of use.
        installed: whether its result is files, which are put into the package's folder.
        subsumes: whether a result in the store makes the actions before it superfluous.
    """

    name: KindName
    action: Callable[[Plan, str, Unit], Action | None]
    status: Callable[[Plan, str, Unit], Status]
    blobs: Callable[[Result], Iterable[Digest]]
    installed: bool = False
    subsumes: bool = False

    def last(self, state: Mapping[str, Any], unit: Unit) -> Digest | None:
        """Return the digest of the action that was last done, by the recorded state of its
        package."""
        recorded = state.get(self.name, {})
        digest: Digest | None = recorded.get("action" if self.installed else unit_name(unit))
        return digest


def _find_quantize(plan: Plan, package: str, unit: Unit) -> Action | None:
    return (plan.quantizes(package) or {}).get(unit_name(unit))


def _find_compile(plan: Plan, package: str, unit: Unit) -> Action | None:
    name = unit_name(unit)
    return next((a for a in plan.compiles(package) or () if a.method == name), None)


# In the order of a run.
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "export",
            action=lambda plan, model, _: plan.models.export(model),
            status=lambda plan, model, _: status.export_status(plan, model),
            blobs=exported_blobs,
        ),
        Kind(
            "quantize",
            action=_find_quantize,
            status=lambda plan, package, unit: status.unit_status(
                plan, package, _find_quantize(plan, package, unit)
            ),
            blobs=lambda result: result["blobs"],
        ),
        Kind(
            "compile",
            action=_find_compile,
            status=lambda plan, package, unit: status.unit_status(
                plan, package, _find_compile(plan, package, unit)
            ),
            blobs=lambda result: result["blobs"],
            subsumes=True,
        ),
        Kind(
            "link",
            action=lambda plan, package, _: plan.link(package),
            status=lambda plan, package, _: status.link_status(plan, package),
            blobs=lambda result: result["files"].values(),
            installed=True,
            subsumes=True,
        ),
        Kind(
            "validate",
            action=lambda plan, package, _: plan.validate(package),
            status=lambda plan, package, _: status.validate_status(plan, package),
            blobs=lambda result: result["files"].values(),
            installed=True,
        ),
    )
}
