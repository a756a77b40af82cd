"""Exporters: models whose source is a Python file, which is run to export their methods.

export    an export action, from the exporter to an archive in the store
exporter  what an exporter defines, and the calls of it
handover  from the exporter's process to the one that writes the archive
neutral   what is alike in the process of every exporter
shared_members  weights of several programs, once in the archive
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "exporters",
    "run exporters; archives of exported programs (.pt2) are built without",
    perform_export={"export": "pipeline.features.exporters.export:export"},
)
