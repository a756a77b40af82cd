"""Unused: code files in a workspace that nothing uses, or that can't be used as they are."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "unused",
    "report files in passes/ and operators/ that are unused or not valid Python, and "
    "configs in subfolders",
    remarks="pipeline.features.unused.code_files:find_remarks",
    check_files="pipeline.features.unused.code_files:find_broken_files",
)
