"""Refit: puts new weights into a compiled unit and a linked package, without lowering or linking.

How each stored blob derives from constants is learned while a unit is compiled. After that, weights
are replaced instead of compiled again.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "refit",
    "put new weights into compiled methods and packages instead of rebuilding them",
    instead_of_compile="pipeline.features.refit.refit:refit_unit",
    expects_refit="pipeline.features.refit.expectations:expects_refit",
    instead_of_link="pipeline.features.refit.relink:relink_package",
    listen_to_link="pipeline.features.refit.relink:keep_pieces",
    listen_to_compile="pipeline.features.refit.lesson:begin_lesson",
    explain_compile="pipeline.features.refit.refit:explain_refit",
    outlines={
        "refit": "pipeline.features.refit.outlines:REFIT",
        "relink": "pipeline.features.refit.outlines:RELINK",
        "refit-model": "pipeline.features.refit.outlines:MODEL",
        "named-keys": "pipeline.features.refit.outlines:NAMED_KEYS",
    },
)
