"""The executor of a cluster: dask.distributed's scheduler and workers, through dask's client.

    driver    executor   packs an action into a parcel, submits it, receives the answer
    worker    agent      in dask's worker: passes the parcel to a separate process, watches it
    process   unpack     makes the action again from the parcel, and performs it

Parcels and answers are JSON: digests, configs and figures. Files go through the store, if both
sides share it, or through its remote tier. Neither dask nor distributed is imported until
`executor` is.
"""

from __future__ import annotations

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import parse_seconds

FEATURE = Feature(
    "cluster",
    "run actions on the workers of a dask scheduler",
    settings={
        "worker_timeout": Setting(
            parse_seconds,
            "a number of seconds above 0",
            "The number of seconds without a message from a worker after which its actions move to "
            "other workers.",
            "180",
        )
    },
    executors={"dask": "pipeline.features.cluster.entry:open_cluster"},
)
