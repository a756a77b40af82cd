"""Cache: the store is looked at, verified, and kept below its greatest size."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "cache",
    "keep the store below `store_size`, say what it holds and has saved, and verify it",
    verbs=(
        Command(
            "cache",
            "show what the store holds and has saved; check it; evict from it",
            "stats | verify | gc",
            {
                "json": "of stats: write one line of JSON instead; docs/reference/json.md "
                "describes it"
            },
            examples=(("doit cache verify", "hashes all of it again"),),
            run="pipeline.features.cache.verb:run",
            record="pipeline.features.cache.verb:STATISTICS",
        ),
    ),
    evict="pipeline.features.cache.eviction:evict",
    earlier_keys="pipeline.features.cache.earlier_results:earlier_keys",
)
