"""ETRecords: the lines and modules of a package's instructions, for ExecuTorch's `Inspector`."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "etrecord",
    "leave etrecord.bin beside a package where `emit.etrecord` asks for it",
    public=("pipeline.features.etrecord.etrecord",),
    after_emit="pipeline.features.etrecord.moments:record_entries",
    after_link="pipeline.features.etrecord.moments:write_etrecord",
)
