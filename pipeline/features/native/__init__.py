"""Runs packages on ExecuTorch's C++ runtime: on this machine, emulated, and on boards.

`runner/` holds the source of the runner, a program that links against the C++ SDK in ExecuTorch's
wheel. It lives in this folder so that it is installed and removed together with the feature.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.features.native.addresses import parse_boards
from pipeline.moments import Command, Feature, Setting
from pipeline.store.setting_table import checked, parse_seconds, parse_text
from pipeline.store.sizes import parse_size


def _parse_path(value: Any, root: Path) -> Path:
    return root / Path(parse_text(value)).expanduser()


def _parse_paths(value: Any, root: Path) -> tuple[Path, ...]:
    paths = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(
        _parse_path(path, root) for path in checked(paths, isinstance(paths, list))
    )


def _parse_size(value: Any, _: Path) -> int:
    size = parse_size(parse_text(value))
    return int(checked(size, bool(size)))


_SDK = "the folder `executorch` from a wheel of release 1.5 or later"
SETTINGS = {
    "native_sdk": Setting(
        _parse_path,
        _SDK,
        "The C++ SDK for building the runner of the device `native`.",
        "the SDK in this environment, or in the environment of a toolchain",
    ),
    "native_sdk_aarch64": Setting(
        _parse_path,
        _SDK,
        "The C++ SDK from the unpacked wheel for aarch64, for building the runner of "
        "`qemu:<cpu>` and of boards.",
    ),
    "native_runner": Setting(
        _parse_path,
        "a path",
        "A runner that you built yourself, for the device `native`.",
        "built when first needed",
    ),
    "native_kernels": Setting(
        _parse_paths,
        "a list of paths",
        "The shared libraries with kernels that packages need and the SDK lacks. `native` and "
        "`qemu:<cpu>` load the libraries that were built for their processor.",
    ),
    "native_boards": Setting(
        parse_boards,
        "a table of names, each with ssh://[user@]host[:port][/folder] or adb://serial[/folder]",
        "The names and addresses of boards and phones that `validate.devices` may use.",
        has_variable=False,
    ),
    "native_runner_android": Setting(
        _parse_path,
        "a path",
        "A runner built with Android's NDK, for devices that are reached through adb.",
    ),
    "native_board_cache": Setting(
        _parse_size,
        "a size such as 2GB",
        "The maximum size of the build's folder on a board. If the folder exceeds it, the least "
        "recently used files are removed.",
        "2GB",
    ),
    "native_board_wait": Setting(
        parse_seconds,
        "a number of seconds",
        "The number of seconds that a validation waits for a board that another build is using.",
        "300",
    ),
}
PROFILE = Command(
    "profile",
    "show where a method spends its time on a device, by operator and source line",
    "package/method",
    {
        "on DEVICE": "native, qemu:<cpu> or a board; by default native, or the first of "
        "validate.devices if that list doesn't include native",
        "repeats N": "the number of recorded calls, after one warm-up call; 20 by default",
    },
    "The ETDump and a trace for https://ui.perfetto.dev are written to build/.",
    (
        ("doit profile vision/classify", "on this machine"),
        ("doit profile vision/classify --on qemu:cortex-a72 --repeats 3", "emulated"),
    ),
    run="pipeline.features.native.profile_verb:run",
)
FEATURE = Feature(
    "native",
    "validate and profile packages on ExecuTorch's C++ runtime: on this machine, emulated, and "
    "on boards",
    verbs=(PROFILE,),
    settings=SETTINGS,
    config={
        "validate": "pipeline.features.native.config:add_fields",
        "target": "pipeline.features.native.config:add_target_fields",
    },
    summarize="pipeline.features.native.planning:summarize",
    planning="pipeline.features.native.planning:NativePlanning",
    describe_key="pipeline.features.native.planning:describe_key",
    devices={
        "native": "pipeline.features.native.device:make_native",
        "qemu:<cpu>": "pipeline.features.native.device:make_emulated",
        "board:<name>": "pipeline.features.native.device:make_board",
    },
    report_fields={
        "methods.devices": "pipeline.features.native.outlines:DEVICES",
        "profiles": "pipeline.features.native.outlines:PROFILES",
    },
    remarks="pipeline.features.native.emulator:find_remarks",
    ask_device="pipeline.features.native.asking:find_lacks",
    measuring="pipeline.features.native.measuring:NativeMeasuring",
    record_run="pipeline.features.native.profile_record:restore_profiles",
    sections={
        16: "pipeline.features.native.section:section",
        17: "pipeline.features.native.profile_record:section",
    },
    overview_sections={25: "pipeline.features.native.section:overview"},
)
