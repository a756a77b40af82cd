"""The preprocess cache: the results of backends' preprocessing, stored by partition.

key              the digest of a partition: everything in it that a backend depends on
value_hash       the digests of values in a partition
records          results as JSON and blobs
stored_results   looks up and stores results
shared_passes    runs XNNPACK's passes once for partitions that differ only in their constants
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "preprocess_cache",
    "reuse a backend's output for an unchanged partition when its method is lowered again",
    around_lowering="pipeline.features.preprocess_cache.shared_passes:sharing_passes",
    find_preprocessed="pipeline.features.preprocess_cache.stored_results:locate_results",
)
