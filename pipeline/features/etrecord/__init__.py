"""ETRecords: the lines and modules of a package's instructions, for ExecuTorch's `Inspector`."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "etrecord",
    "write etrecord.bin next to a package if `emit.etrecord` is set",
    public=("pipeline.features.etrecord.etrecord",),
    after_emit="pipeline.features.etrecord.moments:record_entries",
    after_link="pipeline.features.etrecord.moments:write_etrecord",
)
