"""Leaves one kind of operator to portable kernels, through partitioner options that name operators.

Most partitioners have no such option.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# Options that list operators to keep outside the delegate.
_SKIPPING = {
    "coreml": "skip_ops_for_coreml_delegation",
    "openvino": "op_types_to_skip",
    "vulkan": "operator_blocklist",
}
XNNPACK = "xnnpack"  # lists the operators it takes, by partitioner config
_CONFIGS = "configs"
# The operators that a linear decomposes into, if no config keeps it whole.
_DECOMPOSED = {"aten.linear.default": ("aten.addmm.default", "aten.mm.default")}


def count_delegated(manifest: Mapping[str, Any], method: str) -> dict[str, int]:
    """Return how many operators of each kind a package delegates, the most frequent first.

    A kind is a name such as `aten.add.Tensor`. Operators that only quantize values are left out.
    """
    counts: Counter[str] = Counter()
    for segment in manifest["methods"][method]["delegation"]["segments"]:
        if segment["backend"]:
            counts.update(segment["operators"])
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return {
        _name_overload(kind): counts[kind] for kind in kinds if kind.startswith("aten.")
    }


def _name_overload(kind: str) -> str:
    return kind if kind.count(".") > 1 else f"{kind}.default"


def is_left(kind: str, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return whether a package delegates fewer operators of a kind after a change than before.

    Operators that are fused into others, such as a relu, don't change the count. The counts come
    from `count_delegated`.
    """
    sums = [
        sum(counts.get(form, 0) for form in _list_forms(kind))
        for counts in (before, after)
    ]
    return sums[1] < sums[0]


def _list_forms(kind: str) -> tuple[str, ...]:
    return (kind, *_DECOMPOSED.get(kind, ()))


def leave_operator(
    partitioners: Sequence[Any], kind: str, targets: Mapping[str, str]
) -> list[Any] | None:
    """Return a method's partitioners, changed to leave a kind of operator to portable kernels.

    Returns None if one of them has no such option.

    Args:
        partitioners: in the form that a config uses.
        targets: the operator of each partitioner config of XNNPACK, such as `add.Tensor`.
    """
    items = []
    for item in partitioners:
        name, options = (
            (item, {}) if isinstance(item, str) else next(iter(item.items()))
        )
        changed = _leave(name, options or {}, kind, targets)
        if changed is None:
            return None
        items.append({name: changed})
    return items


def _leave(
    name: str, options: Mapping[str, Any], kind: str, targets: Mapping[str, str]
) -> dict[str, Any] | None:
    if option := _SKIPPING.get(name):
        return {**options, option: [*(options.get(option) or ()), kind]}
    if name != XNNPACK:
        return None
    present = options.get(_CONFIGS) or [*targets]
    leaving = _list_forms(kind)
    left = [
        config for config in present if f"aten.{targets.get(config)}" not in leaving
    ]
    if len(left) == len(present) or not left:
        return None
    return {**options, _CONFIGS: left}


def list_config_targets() -> dict[str, str]:
    """Return the operator of each partitioner config of the installed XNNPACK backend."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS

    return {config.__name__: config.target_name for config in ALL_PARTITIONER_CONFIGS}
