"""Find what `native` and `qemu:<cpu>` run packages with: SDK, compiler, emulator. No torch is here.

Nothing is built here, and nothing of an SDK is run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from pipeline.store.file_digests import FileDigests
from pipeline.store.places import TOOLCHAINS, default_root
from pipeline.store.setting_table import find_settings
from pipeline.store.settings_reader import TABLE, SettingsReader, open_settings

NATIVE, EMULATED = "native", "qemu:"
SOURCES = Path(__file__).with_name("runner")
_CPU = re.compile(r"[\w.,=+-]{1,80}")  # QEMU's names and switches: max,sme=off
_LIBRARIES = "lib/libexecutorch*.so"
_RUNTIME = "lib/libexecutorch.so"
_ABI = "/usr/aarch64-linux-gnu"  # where Debian's cross compiler has its libc
_EMULATOR, _CROSS_COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-g++"


class Setup:
    """The SDK or runner, the compiler and the emulator of one device.

    Attributes:
        device: its name.
        problem: why it can't run here, and what to do about it; "" where it can.
        sdk: the folder `executorch` of a wheel; None where a runner is given.
        runner: the runner that a setting names, or None.
        compiler: the C++ compiler.
        emulator: the command before that of the runner; empty on this machine.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.problem = ""
        self.sdk: Path | None = None
        self.runner: Path | None = None
        self.compiler = "g++"
        self.emulator: list[str] = []

    def describe(self, digests: FileDigests) -> dict[str, object]:
        """Return as JSON what decides what the device gives: files by name and content, or why it
        can't run."""
        facts: dict[str, object] = {"emulator": self.emulator[1:]}
        if self.problem:
            facts["problem"] = self.problem
        files = sorted(self.sdk.glob(_LIBRARIES)) if self.sdk else []
        if self.runner:
            files.append(self.runner)
        files += [Path(path) for path in self.emulator[:1]]
        for path in files:
            facts[path.name] = digests.find(path)
        return facts


def is_native(device: str) -> bool:
    """Tell whether a name is that of a device of this feature."""
    cpu = device.removeprefix(EMULATED)
    return device == NATIVE or (cpu != device and bool(_CPU.fullmatch(cpu)))


def find_setup(device: str, root: Path) -> Setup:
    """Return what a device runs with in the workspace at `root`. Raises PipelineError for settings
    that can't be read."""
    settings = open_settings(root)
    if device == NATIVE:
        return _find_native(settings)
    return _find_emulated(device, settings)


def _find_native(settings: SettingsReader) -> Setup:
    setup = Setup(NATIVE)
    setup.runner = settings.get("native_runner")
    if setup.runner:
        if not setup.runner.is_file():
            setup.problem = (
                f"{settings.place_of('native_runner')}: {setup.runner} is no file"
            )
        return setup
    setup.sdk = settings.get("native_sdk")
    if setup.sdk is None:
        setup.sdk = next(_iter_sdks(settings), None)
    if setup.sdk is None:
        setup.problem = (
            "no C++ SDK of ExecuTorch here, which its wheels have since 1.5; set native_sdk in "
            f'[{TABLE}] of pyproject.toml, such as native_sdk = ".venv-et15/lib/python3.11/'
            'site-packages/executorch"'
        )
        return setup
    _check_build(setup, "native_sdk", "cmake g++", settings)
    return setup


def _find_emulated(device: str, settings: SettingsReader) -> Setup:
    setup = Setup(device)
    setup.compiler = _CROSS_COMPILER
    cpu = device.removeprefix(EMULATED)
    emulator = shutil.which(_EMULATOR) or _EMULATOR
    setup.emulator = [emulator, "-cpu", cpu, "-L", _ABI]
    setup.sdk = settings.get("native_sdk_aarch64")
    if setup.sdk is None:
        setup.problem = (
            f"set native_sdk_aarch64 in [{TABLE}] of pyproject.toml to the folder `executorch` of "
            "the unpacked wheel for aarch64 (docs/guides/proving-on-devices.md)"
        )
        return setup
    packages = "cmake g++-aarch64-linux-gnu qemu-user-static"
    _check_build(setup, "native_sdk_aarch64", packages, settings)
    if not setup.problem and not shutil.which(_EMULATOR):
        setup.problem = f"{_EMULATOR} is not installed; `apt install qemu-user-static`"
    return setup


def _check_build(
    setup: Setup, setting: str, packages: str, settings: SettingsReader
) -> None:
    """Say what is missing to build the runner."""
    if setup.sdk is not None and not (setup.sdk / _RUNTIME).is_file():
        place = setting
        if settings.is_set(setting):
            place = settings.place_of(setting)
        setup.problem = (
            f"{place}: {setup.sdk} has no {_RUNTIME}; it must be the folder `executorch` of a "
            "wheel of 1.5 or later"
        )
        return
    for program in ("cmake", setup.compiler):
        if not shutil.which(program):
            setup.problem = f"{program} is not installed; `apt install {packages}`"
            return


def _iter_sdks(settings: SettingsReader) -> Iterator[Path]:
    """Yield the SDKs of this environment and of the toolchains that the workspace names."""
    spec = find_spec("executorch")
    folders = [Path(path) for path in (spec and spec.submodule_search_locations) or ()]
    toolchains: Mapping[str, tuple[str, ...]] = {}
    if "toolchains" in find_settings():  # a feature that an installation may lack
        toolchains = settings.get("toolchains", {})
    for name, texts in toolchains.items():
        environments = [settings.root / Path(texts[0]).expanduser()]
        environments += sorted((default_root() / TOOLCHAINS).glob(f"{name}-*"))
        for environment in environments:
            folders += environment.glob("lib/python3*/site-packages/executorch")
    for folder in folders:
        if (folder / _RUNTIME).is_file():
            yield folder
