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
    backends = set(backends)
    others = sorted(backends.difference(_BACKENDS))
    rest = _CATEGORIES - len(_BACKENDS)
    places = {backend: index for index, backend in enumerate(_BACKENDS)}
    places |= {backend: len(_BACKENDS) + index % rest for index, backend in enumerate(others)}
    return {backend: f"var(--c{places[backend]})" for backend in backends}


def colour_of(kind: str) -> str:
    """Return the colour of a kind of segment or of action."""
    places = {name: index for kinds in (_SEGMENTS, _ACTIONS) for index, name in enumerate(kinds)}
    return f"var(--c{places[kind]})" if kind in places else LEFT
