"""The libraries that a device must link for each backend."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends import BACKENDS
from pipeline.features.contracts.linking import backend_links
from tools.reference.markdown import row


def linking() -> Iterator[str]:
    """Yield the table of all backends."""
    yield "| backend | name in packages | CMake option | library | notes |"
    yield "|---|---|---|---|---|"
    for name, backend in BACKENDS.items():
        if backend.plugin:
            continue
        if name not in backend_links():
            raise KeyError(f"{name}: linking.toml of its family has no row in [backends]")
        kernels, linked = backend.lowering.kernels, backend_links()[name]
        yield row(
            f"`{name}`",
            f"operators `{kernels}::...`" if kernels else f"`{backend.backend_id}`",
            quoted(linked["option"]),
            quoted(linked["library"]),
            linked["more"] or "none",
        )


def quoted(name: str) -> str:
    """Return a name as code, or "none" if there is none."""
    if name:
        return f"`{name}`"
    return "none"
