"""Backend plugins: backends without a folder in the catalogue.

plugins  backends of other distributions, found by entry point
vendors  rows of data about backends that only a plugin can lower to: what each needs
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "backend_plugins",
    "lower to backends from other distributions, and list the requirements of vendors' "
    "backends",
    backends="pipeline.features.backend_plugins.plugins:find_backends",
)
