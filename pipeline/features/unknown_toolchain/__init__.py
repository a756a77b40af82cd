"""The check, as a command starts, that torch and ExecuTorch are of releases that were tested."""

from __future__ import annotations

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import checked

FEATURE = Feature(
    "unknown_toolchain",
    "warn about releases of torch and ExecuTorch that were not tested, and refuse them in CI",
    settings={
        "unknown_toolchain": Setting(
            lambda value, _: checked(value, value in ("allow", "refuse")),
            "allow or refuse",
            "Whether packages are built with another torch, executorch or torchao than this "
            "release was tested with. A line says so anyway.",
            "allow; refuse where CI=true",
        ),
    },
    before_command="pipeline.features.unknown_toolchain.toolchain_check:check_toolchain",
)
