"""Finds what `native`, `qemu:<cpu>` and boards run packages with: SDK, compiler, emulator, address.

It builds nothing, runs nothing from an SDK, connects to no board, and doesn't import torch.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from pipeline.features.native import adb, ssh
from pipeline.features.native.addresses import SSH, BoardAddress
from pipeline.features.native.kernel_libraries import (
    SETTING,
    find_sdk_library,
    is_for_machine,
)
from pipeline.features.native.target_devices import EMULATED as EMULATED
from pipeline.store.file_digests import FileDigests
from pipeline.store.places import TOOLCHAINS, default_root
from pipeline.store.setting_table import find_settings
from pipeline.store.settings_reader import TABLE, SettingsReader, open_settings
from pipeline.store.sizes import parse_size

NATIVE = "native"
BOARD = "board:<name>"  # the pattern that other features list; configs use a board's plain name
SOURCES = Path(__file__).with_name("runner")
_CPU = re.compile(r"[\w.,=+-]{1,80}")  # QEMU's names and switches: max,sme=off
_LIBRARIES = "lib/libexecutorch*.so"
_RUNTIME = "lib/libexecutorch.so"
_ABI = "/usr/aarch64-linux-gnu"  # the folder of Debian's cross compiler with its libc
EMULATOR, CROSS_COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-g++"
_ARM = "aarch64"  # as printed by `uname -m`
BOARDS = "native_boards"
_WAIT_SECONDS = 300.0
CACHE_SIZE = "2GB"


class Setup:
    """The SDK or runner, the compiler and the emulator of one device.

    Attributes:
        device: the name of the device.
        problem: why the device can't run here and how to fix that, or "" if it can.
        sdk: the folder `executorch` of a wheel, or None if a setting names a runner.
        runner: the runner that a setting names, or None.
        compiler: the C++ compiler.
        kernels: libraries with further kernels, which a runner loads for packages that need them.
        kernel_facts: further files on which the outputs of these kernels depend.
        emulator: the command that precedes the runner's; empty without an emulator.
        address: the address of a board; None for other devices.
        machines: for a board, the setup for each processor (`uname -m`) that it may have; empty for
            other devices, and if a setting names the board's runner.
        wait_seconds: how long to wait for a board that another build is using.
        cache_size: the maximum size of the folder on a board, in bytes.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.problem = ""
        self.sdk: Path | None = None
        self.runner: Path | None = None
        self.compiler = "g++"
        self.kernels: list[Path] = []
        self.kernel_facts: list[Path] = []
        self.emulator: list[str] = []
        self.address: BoardAddress | None = None
        self.machines: dict[str, Setup] = {}
        self.wait_seconds = _WAIT_SECONDS
        self.cache_size = 0

    def describe(self, digests: FileDigests) -> dict[str, object]:
        """Return, as JSON, everything that decides the device's outputs, or why it can't run.

        Among these are files by name and digest.
        """
        facts: dict[str, object] = {"emulator": self.emulator[1:]}
        if self.problem:
            facts["problem"] = self.problem
        if self.address:
            facts["address"] = self.address.text
        for machine, setup in self.machines.items():
            facts[machine] = setup.describe(digests)
        files = find_libraries(self)
        if self.runner:
            files.append(self.runner)
        files += [Path(path) for path in self.emulator[:1]]
        files += self.kernel_facts
        for path in files:
            facts[path.name] = digests.find(path)
        for number, path in enumerate(self.kernels):
            facts[f"kernels {number}"] = digests.find(path)
        return facts


def find_boards(root: Path) -> Mapping[str, BoardAddress]:
    """Return the boards that the workspace at `root` names, with their addresses.

    Raises PipelineError if the settings can't be read.
    """
    boards: Mapping[str, BoardAddress] = open_settings(root).get(BOARDS, {})
    return boards


def is_native(device: str, root: Path) -> bool:
    """Return whether a name is a device of this feature in the workspace at `root`.

    Raises PipelineError if the settings can't be read.
    """
    cpu = device.removeprefix(EMULATED)
    if device == NATIVE or (cpu != device and _CPU.fullmatch(cpu)):
        return True
    return device in find_boards(root)


def find_setup(device: str, root: Path) -> Setup:
    """Return the setup of a device in the workspace at `root`.

    Raises PipelineError if the settings can't be read.
    """
    settings = open_settings(root)
    if device == NATIVE:
        return _find_native(settings)
    if device.startswith(EMULATED):
        return _find_emulated(device, settings)
    return _find_board(device, settings)


def find_emulator() -> str | None:
    """Return the path of the emulator, or None if it is not installed."""
    return shutil.which(EMULATOR)


def find_libraries(setup: Setup) -> list[Path]:
    """Return the libraries of an SDK that must be next to its runner."""
    return sorted(setup.sdk.glob(_LIBRARIES)) if setup.sdk else []


def _find_native(settings: SettingsReader) -> Setup:
    setup = Setup(NATIVE)
    setup.runner = settings.get("native_runner")
    _add_kernels(setup, platform.machine(), settings)
    if setup.problem:
        return setup
    if setup.runner:
        if not setup.runner.is_file():
            setup.problem = (
                f"{settings.place_of('native_runner')}: {setup.runner} is not a file"
            )
        return setup
    setup.sdk = settings.get("native_sdk")
    if setup.sdk is None:
        setup.sdk = next(_iter_sdks(settings), None)
    if setup.sdk is None:
        setup.problem = (
            "there is no C++ SDK of ExecuTorch here, which wheels include since 1.5; set "
            "native_sdk in "
            f'[{TABLE}] of pyproject.toml, such as native_sdk = ".venv-et15/lib/python3.11/'
            'site-packages/executorch"'
        )
        return setup
    _add_sdk_library(setup)
    _check_build(setup, "native_sdk", "cmake g++", settings)
    return setup


def _find_emulated(device: str, settings: SettingsReader) -> Setup:
    setup = _find_cross(device, settings)
    _add_kernels(setup, _ARM, settings)
    _add_sdk_library(setup)
    cpu = device.removeprefix(EMULATED)
    emulator = find_emulator()
    setup.emulator = [emulator or EMULATOR, "-cpu", cpu, "-L", _ABI]
    if not setup.problem and emulator is None:
        setup.problem = f"{EMULATOR} is not installed; `apt install qemu-user-static`"
    return setup


def _find_cross(device: str, settings: SettingsReader) -> Setup:
    """Return the setup that builds a runner for aarch64."""
    setup = Setup(device)
    setup.compiler = CROSS_COMPILER
    setup.sdk = settings.get("native_sdk_aarch64")
    if setup.sdk is None:
        setup.problem = (
            f"set native_sdk_aarch64 in [{TABLE}] of pyproject.toml to the folder `executorch` of "
            "the unpacked wheel for aarch64 (docs/guides/proving-on-devices.md)"
        )
        return setup
    packages = "cmake g++-aarch64-linux-gnu qemu-user-static"
    _check_build(setup, "native_sdk_aarch64", packages, settings)
    return setup


def _find_board(device: str, settings: SettingsReader) -> Setup:
    setup = Setup(device)
    address: BoardAddress = settings.get(BOARDS)[device]
    setup.address = address
    setup.wait_seconds = settings.get("native_board_wait", _WAIT_SECONDS)
    setup.cache_size = settings.get("native_board_cache") or parse_size(CACHE_SIZE) or 0
    if address.scheme == SSH:
        setup.problem = ssh.find_problem()
        _find_machines(setup, settings)
        return setup
    setup.problem = adb.find_problem()
    setup.runner = settings.get("native_runner_android")
    if setup.runner is None:
        setup.problem = setup.problem or (
            f"set native_runner_android in [{TABLE}] of pyproject.toml to a runner that was built "
            "with the NDK; wheels of ExecuTorch have no libraries for Android"
        )
    elif not setup.runner.is_file():
        place = settings.place_of("native_runner_android")
        setup.problem = f"{place}: {setup.runner} is not a file"
    return setup


def _add_kernels(setup: Setup, machine: str, settings: SettingsReader) -> None:
    """Add the libraries from `native_kernels` that are built for a processor.

    Reports paths that aren't files.
    """
    for path in settings.get(SETTING, ()):
        if not path.is_file():
            setup.problem = f"{settings.place_of(SETTING)}: {path} is not a file"
        if is_for_machine(path, machine):
            setup.kernels.append(path)


def _add_sdk_library(setup: Setup) -> None:
    """Add the SDK's own library of kernels for language models, if PyTorch is available too."""
    if setup.sdk:
        library = find_sdk_library(setup.sdk)
        setup.kernels += library[:1]
        setup.kernel_facts += library[1:]


def _find_machines(setup: Setup, settings: SettingsReader) -> None:
    """Add the setups for boards, by processor: aarch64 and this machine's."""
    native = _find_native(settings)
    setup.machines = {_ARM: _find_cross(setup.device, settings)}
    if not native.problem or platform.machine() == _ARM:
        setup.machines[platform.machine()] = native
    problems = [choice.problem for choice in setup.machines.values()]
    if all(problems):
        setup.problem = setup.problem or problems[0]


def _check_build(
    setup: Setup, setting: str, packages: str, settings: SettingsReader
) -> None:
    """Report what is missing to build the runner."""
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
    if "toolchains" in find_settings():  # an installation may lack that feature
        toolchains = settings.get("toolchains", {})
    for name, texts in toolchains.items():
        environments = [settings.root / Path(texts[0]).expanduser()]
        environments += sorted((default_root() / TOOLCHAINS).glob(f"{name}-*"))
        for environment in environments:
            folders += environment.glob("lib/python3*/site-packages/executorch")
    for folder in folders:
        if (folder / _RUNTIME).is_file():
            yield folder
