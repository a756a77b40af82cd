"""What a device links for each backend."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.backends import BACKENDS
from tools.reference.markdown import row

FILE = Path(__file__).with_suffix(".toml")


def linked() -> Mapping[str, Mapping[str, str]]:
    """Return what is known of each backend: `option`, `library`, `more`."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def linking() -> Iterator[str]:
    """Yield the table of all backends."""
    yield "| backend | in the package | CMake option | library | beside |"
    yield "|---|---|---|---|---|"
    known = linked()
    for name, backend in BACKENDS.items():
        if backend.plugin:
            continue
        kernels = backend.lowering.kernels
        option, library = (known[name].get(key, "") for key in ("option", "library"))
        yield row(
            f"`{name}`",
            f"operators `{kernels}::...`" if kernels else f"`{backend.backend_id}`",
            f"`{option}`" if option else "",
            f"`{library}`" if library else "",
            known[name].get("more", ""),
        )
