"""Native: runs packages on ExecuTorch's C++ runtime, on this machine and on emulated processors.

`runner/` is a program on the C++ SDK of ExecuTorch's wheel. It stands in this folder so that it is
installed with the package, and goes where the feature goes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.moments import Feature, Section, Setting
from pipeline.store.setting_table import parse_text


def _parse_path(value: Any, root: Path) -> Path:
    return root / Path(parse_text(value)).expanduser()


_SDK = "the folder `executorch` of a wheel of 1.5 or later"
SETTINGS = {
    "native_sdk": Setting(
        _parse_path,
        _SDK,
        "The C++ SDK on which the runner of the device `native` is built.",
        "that of this environment, or of a toolchain",
    ),
    "native_sdk_aarch64": Setting(
        _parse_path,
        _SDK,
        "The C++ SDK of the wheel for aarch64, unpacked, on which the devices `qemu:<cpu>` run.",
    ),
    "native_runner": Setting(
        _parse_path,
        "a path",
        "A runner that was built before, for the device `native`.",
        "built when first needed",
    ),
}
FEATURE = Feature(
    "native",
    "validate packages on ExecuTorch's C++ runtime, here and on emulated processors",
    settings=SETTINGS,
    config={"validate": "pipeline.features.native.config:add_fields"},
    summarize="pipeline.features.native.planning:summarize",
    planning="pipeline.features.native.planning:NativePlanning",
    describe_key="pipeline.features.native.planning:describe_key",
    devices={
        "native": "pipeline.features.native.device:make_native",
        "qemu:": "pipeline.features.native.device:make_emulated",
    },
    measuring="pipeline.features.native.measuring:NativeMeasuring",
    sections=(Section(16, "pipeline.features.native.section:section"),),
    overview_sections=(Section(25, "pipeline.features.native.section:overview"),),
)
