"""Input files: finds damaged files of examples and calibration inputs before anything is built.

damage    checks a file by its headers
planning  checks the files that configs name
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "input_files",
    "refuse damaged .npz and .safetensors files before a build; without it, the actions that "
    "read the files fail",
    summarize="pipeline.features.input_files.planning:summarize",
    planning="pipeline.features.input_files.planning:InputFilePlanning",
)
