"""Find what `native`, `qemu:<cpu>` and boards run packages with: SDK, compiler, emulator, address.

Nothing is built here, nothing of an SDK is run, no board is asked, and no torch is imported.
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
from pipeline.store.file_digests import FileDigests
from pipeline.store.places import TOOLCHAINS, default_root
from pipeline.store.setting_table import find_settings
from pipeline.store.settings_reader import TABLE, SettingsReader, open_settings
from pipeline.store.sizes import parse_size

NATIVE, EMULATED = "native", "qemu:"
BOARD = (
    "board:<name>"  # as other features ask for one; configs name it by its name alone
)
SOURCES = Path(__file__).with_name("runner")
_CPU = re.compile(r"[\w.,=+-]{1,80}")  # QEMU's names and switches: max,sme=off
_LIBRARIES = "lib/libexecutorch*.so"
_RUNTIME = "lib/libexecutorch.so"
_ABI = "/usr/aarch64-linux-gnu"  # where Debian's cross compiler has its libc
EMULATOR, CROSS_COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-g++"
_ARM = "aarch64"  # as `uname -m` has it
BOARDS = "native_boards"
_WAIT_SECONDS = 300.0
CACHE_SIZE = "2GB"


class Setup:
    """The SDK or runner, the compiler and the emulator of one device.

    Attributes:
        device: its name.
        problem: why it can't run here, and what to do about it; "" where it can.
        sdk: the folder `executorch` of a wheel; None where a runner is given.
        runner: the runner that a setting names, or None.
        compiler: the C++ compiler.
        kernels: libraries of further kernels, which a runner loads for packages that need them.
        kernel_facts: files that decide what these give, beside themselves.
        emulator: the command before that of the runner; empty on this machine.
        address: of a board; None for other devices.
        machines: what a board of a processor (`uname -m`) runs with; empty for other devices, and
            for one whose runner a setting names.
        wait_seconds: how long to wait for a board that another build measures on.
        cache_size: bytes that the folder on a board may take.
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
        """Return as JSON what decides what the device gives: files by name and content, or why it
        can't run."""
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
    """Return the boards that the workspace at `root` names. Raises PipelineError for settings that
    can't be read."""
    boards: Mapping[str, BoardAddress] = open_settings(root).get(BOARDS, {})
    return boards


def is_native(device: str, root: Path) -> bool:
    """Tell whether a name is that of a device of this feature in the workspace at `root`. Raises
    PipelineError for settings that can't be read."""
    cpu = device.removeprefix(EMULATED)
    if device == NATIVE or (cpu != device and _CPU.fullmatch(cpu)):
        return True
    return device in find_boards(root)


def find_setup(device: str, root: Path) -> Setup:
    """Return what a device runs with in the workspace at `root`. Raises PipelineError for settings
    that can't be read."""
    settings = open_settings(root)
    if device == NATIVE:
        return _find_native(settings)
    if device.startswith(EMULATED):
        return _find_emulated(device, settings)
    return _find_board(device, settings)


def find_emulator() -> str | None:
    """Return the path of the emulator, None where it is not installed."""
    return shutil.which(EMULATOR)


def find_libraries(setup: Setup) -> list[Path]:
    """Return the libraries of an SDK, which its runner needs next to it."""
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
    """Return what a runner for aarch64 is built with."""
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
    """Add the libraries of the setting that were built for a processor, and say which are none."""
    for path in settings.get(SETTING, ()):
        if not path.is_file():
            setup.problem = f"{settings.place_of(SETTING)}: {path} is not a file"
        if is_for_machine(path, machine):
            setup.kernels.append(path)


def _add_sdk_library(setup: Setup) -> None:
    """Add the SDK's own library of kernels for language models, if PyTorch is there, too."""
    if setup.sdk:
        library = find_sdk_library(setup.sdk)
        setup.kernels += library[:1]
        setup.kernel_facts += library[1:]


def _find_machines(setup: Setup, settings: SettingsReader) -> None:
    """Add what boards of each processor run with: this machine's, and aarch64."""
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
