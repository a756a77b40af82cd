"""Colours of backends, segments and actions: variables of the style, the same on every page."""

from __future__ import annotations

from collections.abc import Iterable

LEFT = "var(--left)"
_CATEGORIES = 8
# Backends of the catalogue have colours of their own; others share the rest.
_BACKENDS = (
    "XnnpackBackend",
    "VulkanBackend",
    "CoreMLBackend",
    "EthosUBackend",
    "OpenvinoBackend",
    "VgfBackend",
)
_SEGMENTS = ("delegate", "named_data", "constants", "mutable", "program")
_ACTIONS = ("export", "quantize", "compile", "link", "validate")


def backend_colours(backends: Iterable[str]) -> dict[str, str]:
    backends = sorted(set(backends))
    others = [backend for backend in backends if backend not in _BACKENDS]
    places = {backend: index for index, backend in enumerate(_BACKENDS)}
    rest = _CATEGORIES - len(_BACKENDS)
    places |= {backend: len(_BACKENDS) + index % rest for index, backend in enumerate(others)}
    return {backend: f"var(--c{places[backend]})" for backend in backends}


def segment_colour(kind: str) -> str:
    return f"var(--c{_SEGMENTS.index(kind)})" if kind in _SEGMENTS else LEFT


def action_colour(kind: str) -> str:
    return f"var(--c{_ACTIONS.index(kind)})" if kind in _ACTIONS else LEFT
