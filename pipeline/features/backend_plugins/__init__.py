"""Backend plugins: backends that the catalogue has no folder of.

plugins  those of other distributions, by entry point
vendors  rows of data on those that only a plugin lowers to: what each needs
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "backend_plugins",
    "lower to backends of other distributions, and list the requirements of vendors' backends",
    backends="pipeline.features.backend_plugins.plugins:find_backends",
)
