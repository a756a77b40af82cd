"""Loading: packages as Python objects, through `pte_pipeline.load_package`."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "loading",
    "call the methods of packages from Python with pte_pipeline.load_package",
    public=("pipeline.features.loading.load_package",),
    read_signature="pipeline.features.loading.method_spec:read_signature",
)
