"""Which variable of the style colours what, so that a backend has its colour on every page."""

from __future__ import annotations

from collections.abc import Iterable

LEFT = "var(--left)"
_CATEGORIES = 8
# Those of the catalogue have places of their own; others share the rest.
_BACKENDS = (
    "XnnpackBackend",
    "VulkanBackend",
    "CoreMLBackend",
    "EthosUBackend",
    "OpenvinoBackend",
    "VgfBackend",
)
_KINDS = ("delegate", "named_data", "constants", "mutable", "program", "padding")
_ACTIONS = ("export", "quantize", "compile", "link", "validate")


def of_backends(ids: Iterable[str]) -> dict[str, str]:
    """By backend id."""
    names = set(ids)
    others = sorted(names - set(_BACKENDS))
    places = {name: index for index, name in enumerate(_BACKENDS)}
    rest = _CATEGORIES - len(_BACKENDS)
    places |= {name: len(_BACKENDS) + index % rest for index, name in enumerate(others)}
    return {name: category(places[name]) for name in sorted(names)}


def of_kind(segment: str) -> str:
    if segment == "padding":
        return LEFT
    return category(_KINDS.index(segment)) if segment in _KINDS else LEFT


def of_action(kind: str) -> str:
    return category(_ACTIONS.index(kind)) if kind in _ACTIONS else LEFT


def category(index: int) -> str:
    return f"var(--c{index % _CATEGORIES})"
