"""Cache: the store is looked at, verified, and evicted by hand."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "cache",
    "say what the store holds and has saved, verify it, and evict by hand",
    verbs=(
        Command(
            "cache",
            "the store: what it holds and has saved; check it; evict",
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
)
