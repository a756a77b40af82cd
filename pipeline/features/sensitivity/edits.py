"""Edits the config files of a package, changing one method and nothing else in any config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.features.sensitivity.overrides import (
    Place,
    add_overrides,
    find_method_places,
    find_places,
)
from pipeline.features.sensitivity.trial import open_trial
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError

Data = dict[str, Any]  # configs without mistakes, by package


def edit_configs(
    plan: Plan, package: str, overrides: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the contents of the config files that give a package these overrides, by file name.

    Args:
        overrides: by method, then by `modules` and `operators`, then by name.

    Raises:
        PipelineError: no insertion into a file gives these overrides and changes nothing else.
    """
    texts: dict[str, str] = {}
    data = _read_sound(plan)
    for method, by_kind in overrides.items():
        for kind, members in by_kind.items():
            data[package] = add_overrides(data[package], method, {kind: members})
            places = find_places(plan.document(package), method, kind)
            edited = _edit_place(plan, places, members, texts, data)
            if edited is None:
                raise PipelineError(
                    f"{package}/{method}: {plan.document(package).file} has no place for "
                    f"`{kind}` of this method alone; edit it yourself: {members}"
                )
            texts = edited
    return texts


def edit_methods(
    plan: Plan,
    package: str,
    by_method: Mapping[str, Mapping[str, Any]],
    alone: bool = True,
) -> dict[str, str]:
    """Return the contents of the config files that give methods of a package these settings.

    Settings replace existing ones of the same name.

    Args:
        alone: whether other packages must stay unchanged; in a trial, the others of a matrix may
            change.

    Raises:
        PipelineError: as in `edit_configs`.
    """
    texts: dict[str, str] = {}
    data = _read_sound(plan)
    for method, settings in by_method.items():
        methods = data[package]["methods"]
        changed = {**(methods[method] or {}), **settings}
        data[package] = {**data[package], "methods": {**methods, method: changed}}
        places = find_method_places(plan.document(package), method)
        expected = data if alone else {package: data[package]}
        edited = _edit_place(plan, places, settings, texts, expected)
        if edited is None:
            raise PipelineError(
                f"{package}/{method}: {plan.document(package).file} has no place for settings of "
                f"this method alone; edit it yourself: {dict(settings)}"
            )
        texts = edited
    return texts


def _edit_place(
    plan: Plan,
    places: Iterable[Place],
    members: Mapping[str, Any],
    texts: Mapping[str, str],
    data: Data,
) -> dict[str, str] | None:
    """Return the contents with `members` inserted at the first place that has the intended effect.

    Afterwards, all configs must say what they should. Returns None if there is no such place.
    """
    for file, path, keys in places:
        name = Path(file).name
        if name not in texts:
            text = (plan.workspace.configs / name).read_text(encoding="utf-8")
        else:
            text = texts[name]
        changed = next(call_all("edit_config", text, path, keys, members), None)
        if changed is None:
            continue
        edited = {**texts, name: changed}
        # Parsed again, since an anchor, a base or a matrix may use the same text.
        with open_trial(plan, edited) as trial:
            written = _read_sound(trial)
        if {name: written.get(name) for name in data} == data:
            return edited
    return None


def _read_sound(plan: Plan) -> Data:
    """Return the data of the configs that have no mistakes, by package."""
    names = [name for name in plan.packages if plan.configs.config(name)]
    return {name: plan.written(name) for name in names}
