"""Spawning: isolated code in a fresh Python, for when forking this process is not safe.

start  sends a call to a new process, with the files and sockets in it
child  receives the call in that process, and makes it
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "spawning",
    "run exporters in fresh processes where forks are not safe, as on macOS",
    start_process="pipeline.features.spawning.start:start_process",
)
