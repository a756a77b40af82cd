"""State that several methods use under the same name: the config must say whether they share it.

A key-value cache that `prefill` fills and `decode` reads is a single buffer of the model.
ExecuTorch gives each method its own copy unless their memory is planned together, and a package
whose state is split this way by accident computes something other than its model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.program.buffers import describe_form, find_common
from pipeline.store.errors import Problem, listed

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

Json = Mapping[str, Any]
# Names of buffers, each with the number of its memory.
Renamed = Sequence[tuple[str, int]]

WHERE = "emit.memory_planning.share_mutable_buffers"
SHARED = "`emit: {memory_planning: {share_mutable_buffers: true}}`"
SPLIT = "`emit: {memory_planning: {share_mutable_buffers: false}}`"
_MOST_NAMED = 3  # buffers in a message


def says_sharing(config: PackageConfig) -> bool:
    """Return whether a config sets buffer sharing, or leaves the buffers to the app."""
    planning = config.emit.memory_planning
    is_written = "share_mutable_buffers" in planning.model_fields_set
    return is_written or not planning.alloc_mutable_buffers


def describe_unsaid(buffers: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """Return the mistake of a config that doesn't set buffer sharing, and the lines to choose from.

    Args:
        buffers: the methods that use each buffer that one of them changes.
    """
    methods = listed(
        dict.fromkeys(name for users in buffers.values() for name in users)
    )
    names = listed(buffers, _MOST_NAMED)
    mistake = (
        f"is missing: {methods} use the same buffers ({names}), and by default each "
        "has a copy"
    )
    return mistake, f"{SHARED} means one state for all of them, {SPLIT} a copy for each"


def check_shared_state(
    config: PackageConfig,
    document: Document,
    buffers: Mapping[str, Mapping[str, Json]],
    renamed: Mapping[str, Renamed],
) -> Iterator[Problem]:
    """Find disagreements between a config and the state of its methods.

    These are buffers that methods use under the same name without the config saying whether they
    are shared, shared buffers with the same name that are different tensors, and memory that
    methods use under several names or as different views.

    Args:
        buffers: by method, the buffers that its program uses (`describe_buffers`).
        renamed: by method, numbered buffers; those with equal numbers share memory in the model.
    """
    common = find_common(buffers)
    if common and not says_sharing(config):
        yield document.problem(WHERE, *describe_unsaid(common))
    if config.emit.memory_planning.share_mutable_buffers:
        for name, forms in _find_several_forms(buffers).items():
            mistake = f"shares the memory of '{name}', which is {listed(forms)}"
            yield document.problem(
                WHERE, mistake, f"rename one of them, or set {SPLIT}"
            )
    if config.emit.memory_planning.share_mutable_buffers or not says_sharing(config):
        tensors = _find_renamed(renamed)
        if tensors:
            more = f" (and so do {len(tensors) - 1} more)" if tensors[1:] else ""
            mistake = (
                f"{listed(tensors[0])} share memory in the model{more}, but methods share "
                "only buffers with the same name and shape"
            )
            yield document.problem(
                WHERE,
                mistake,
                "export the methods from modules that register it as a buffer of one name and "
                f"shape, and set {SHARED}, or set {SPLIT} for a copy in each",
            )


def _find_renamed(renamed: Mapping[str, Renamed]) -> list[list[str]]:
    """Return the names, with their methods, of each tensor that methods name differently."""
    users: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for method, numbers in renamed.items():
        for name, number in numbers:
            users[number].append((method, name))
    return [
        [f"'{name}' of {method}" for method, name in tensor]
        for tensor in users.values()
        if len(tensor) > 1
    ]


def _find_several_forms(
    buffers: Mapping[str, Mapping[str, Json]],
) -> dict[str, list[str]]:
    """Return the forms of each buffer that has several, if a method changes the buffer.

    ExecuTorch gives all of them the memory of the first.
    """
    forms: dict[str, dict[str, str]] = defaultdict(dict)
    changed = set()
    for method, uses in buffers.items():
        for name, use in uses.items():
            forms[name].setdefault(describe_form(use), method)
            if use["changed"]:
                changed.add(name)
    return {
        name: [f"{form} in {method}" for form, method in methods.items()]
        for name, methods in forms.items()
        if name in changed and len(methods) > 1
    }
