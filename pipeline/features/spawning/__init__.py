"""Spawning: isolated code in a fresh Python, where a fork of this process is not safe.

start  sends a call to a new process, with the files and sockets that it names
child  what that process does first
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "spawning",
    "run exporters in fresh processes where forks are not safe, as on macOS",
    start_process="pipeline.features.spawning.start:start_process",
)
