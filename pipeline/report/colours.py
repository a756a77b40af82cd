"""The colours of backends, segments and actions, as CSS variables that every page shares."""

from __future__ import annotations

from collections.abc import Iterable

LEFT = "var(--left)"
_CATEGORIES = 8
# Backends of the catalogue have their own colours; the others share the rest.
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
    """Return the colour of each backend."""
    names = set(backends)
    places = {backend: index for index, backend in enumerate(_BACKENDS)}
    rest = _CATEGORIES - len(_BACKENDS)
    for index, backend in enumerate(sorted(names.difference(_BACKENDS))):
        places[backend] = len(_BACKENDS) + index % rest
    return {backend: f"var(--c{places[backend]})" for backend in names}


def colour_of(kind: str) -> str:
    """Return the colour of a kind of segment or action."""
    for kinds in (_ACTIONS, _SEGMENTS):
        if kind in kinds:
            return f"var(--c{kinds.index(kind)})"
    return LEFT
