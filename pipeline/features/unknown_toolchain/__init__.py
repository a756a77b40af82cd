"""Checks, when a command starts, that torch and ExecuTorch are releases that were tested."""

from __future__ import annotations

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import checked

FEATURE = Feature(
    "unknown_toolchain",
    "warn about untested releases of torch and ExecuTorch, and reject them in CI",
    settings={
        "unknown_toolchain": Setting(
            lambda value, _: checked(value, value in ("allow", "refuse")),
            "allow or refuse",
            "Whether to build with versions of torch, executorch or torchao that this release of "
            "pte-pipeline was not tested with. In both cases, a message names the difference.",
            "allow; refuse if CI=true",
        ),
    },
    before_command="pipeline.features.unknown_toolchain.toolchain_check:check_toolchain",
)
