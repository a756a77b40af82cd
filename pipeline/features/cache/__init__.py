"""Cache: shows what the store contains, verifies it, and keeps it below its size limit."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "cache",
    "keep the store below `store_size`, show its contents and savings, and verify it",
    verbs=(
        Command(
            "cache",
            "show the store's contents and savings, verify it, or shrink it",
            "stats | verify | gc",
            {
                "json": "with stats, print one line of JSON instead (docs/reference/json.md)"
            },
            examples=(("doit cache verify", "hash every blob again"),),
            run="pipeline.features.cache.verb:run",
            record="pipeline.features.cache.verb:STATISTICS",
        ),
    ),
    evict="pipeline.features.cache.eviction:evict",
    earlier_keys="pipeline.features.cache.earlier_results:earlier_keys",
)
