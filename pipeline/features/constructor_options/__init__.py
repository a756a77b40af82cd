"""Constructor options: checks options of configs against ExecuTorch's constructors.

The constructors are described in a file, so ExecuTorch isn't imported.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "constructor_options",
    "refuse options that the installed ExecuTorch doesn't take, before compiling anything",
    unknown_options="pipeline.features.constructor_options.constructors:find_unknown_options",
    describe_outdated="pipeline.features.constructor_options.constructors:outdated",
)
