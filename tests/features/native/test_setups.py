"""A device that lacks something to run gives a one-line error that says what to do."""

import platform

import pytest

from pipeline.features.native import emulator
from pipeline.features.native.addresses import BoardAddress
from pipeline.features.native.board_cache import choose_evictions
from pipeline.features.native.setups import find_setup, is_native
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.file_digests import FileDigests
from pipeline.store.workspace import open_workspace


@pytest.fixture(autouse=True)
def no_sdk(monkeypatch):
    """Remove the variables that name an SDK in the environment of the tests."""
    for variable in ("PTE_PIPELINE_NATIVE_SDK", "PTE_PIPELINE_NATIVE_SDK_AARCH64"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def sdk(tmp_path):
    folder = tmp_path / "wheel" / "executorch"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libexecutorch.so").write_bytes(b"a runtime")
    return folder


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a PATH that contains only programs that a test makes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(*names):
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)

    return make


def set_up(root, **settings):
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    (root / "pyproject.toml").write_text("\n".join(["[tool.pte-pipeline]", *lines]))
    return root


def test_an_sdk_and_a_compiler_are_enough(tmp_path, sdk, programs):
    programs("cmake", "g++")
    setup = find_setup("native", set_up(tmp_path, native_sdk=sdk))
    assert (setup.problem, setup.sdk, setup.emulator) == ("", sdk, [])
    before = setup.describe(FileDigests())
    assert before.keys() == {"emulator", "libexecutorch.so"}
    (sdk / "lib" / "libexecutorch.so").write_bytes(b"another runtime")
    assert setup.describe(FileDigests()) != before


def test_the_sdk_of_a_toolchain_is_found(tmp_path, sdk, programs, monkeypatch):
    monkeypatch.setattr("pipeline.features.native.setups.find_spec", lambda name: None)
    programs("cmake", "g++")
    site_packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    sdk.rename(site_packages / "executorch")
    text = '[tool.pte-pipeline.toolchains]\net15 = "./venv"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert find_setup("native", tmp_path).sdk == site_packages / "executorch"


def test_the_runner_of_a_setting_needs_nothing_else(tmp_path, programs):
    root = set_up(tmp_path, native_runner="runner")
    assert "runner is not a file" in find_setup("native", root).problem
    (tmp_path / "runner").write_bytes(b"a program")
    setup = find_setup("native", root)
    assert (setup.problem, setup.runner) == ("", tmp_path / "runner")


@pytest.mark.parametrize(
    ("device", "settings", "installed", "problem"),
    [
        (
            "native",
            {},
            (),
            "there is no C++ SDK of ExecuTorch here, which wheels include since 1.5; set ",
        ),
        ("native", {"native_sdk": "bin"}, (), "tool.pte-pipeline.native_sdk: "),
        ("native", {"native_sdk": "sdk"}, (), "cmake is not installed; `apt install cmake g++`"),
        ("native", {"native_sdk": "sdk"}, ("cmake",), "g++ is not installed; `apt install"),
        ("qemu:max", {}, (), "set native_sdk_aarch64 in [tool.pte-pipeline] of pyproject.toml"),
        (
            "qemu:max",
            {"native_sdk_aarch64": "sdk"},
            ("cmake",),
            "aarch64-linux-gnu-g++ is not installed; `apt install cmake g++-aarch64-linux-gnu",
        ),
        (
            "qemu:max",
            {"native_sdk_aarch64": "sdk"},
            ("cmake", "aarch64-linux-gnu-g++"),
            "qemu-aarch64-static is not installed; `apt install qemu-user-static`",
        ),
    ],
)
def test_what_is_missing_is_named(
    device, settings, installed, problem, tmp_path, sdk, programs, monkeypatch
):
    monkeypatch.setattr("pipeline.features.native.setups.find_spec", lambda name: None)
    programs(*installed)
    settings = {name: sdk if value == "sdk" else value for name, value in settings.items()}
    setup = find_setup(device, set_up(tmp_path, **settings))
    assert problem in setup.problem
    assert setup.describe(FileDigests())["problem"] == setup.problem


@pytest.mark.parametrize(
    "device", ["native", "qemu:max", "qemu:cortex-a72", "qemu:max,sme=off", "pi5"]
)
def test_names_of_devices(device, tmp_path):
    assert is_native(device, set_up_boards(tmp_path, pi5="ssh://pi@pi5.local"))


@pytest.mark.parametrize("device", ["qemu:", "qemu:a b", "nativ", "ssh://host", "pi5"])
def test_names_of_no_device(device, tmp_path):
    assert not is_native(device, tmp_path)


def set_up_boards(root, sdk=None, **boards):
    lines = ["[tool.pte-pipeline]"]
    if sdk:
        lines.append(f'native_sdk = "{sdk}"')
    lines.append("[tool.pte-pipeline.native_boards]")
    lines += [f'{name} = "{address}"' for name, address in boards.items()]
    (root / "pyproject.toml").write_text("\n".join(lines))
    return root


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ssh://pi@pi5.local", ("ssh", "pi", "pi5.local", "", "")),
        ("ssh://10.0.0.7:2222/mnt/ssd/pte/", ("ssh", "", "10.0.0.7", "2222", "/mnt/ssd/pte")),
        ("ssh://[fe80::1]:22", ("ssh", "", "fe80::1", "22", "")),
        ("adb://192.168.1.5:5555", ("adb", "", "192.168.1.5:5555", "", "")),
        ("adb://R5CT/data/local/tmp/x", ("adb", "", "R5CT", "", "/data/local/tmp/x")),
    ],
)
def test_addresses(text, parts):
    address = BoardAddress(text)
    assert (address.scheme, address.user, address.host, address.port, address.folder) == parts


@pytest.mark.parametrize(
    "text",
    [
        "http://host",
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://a b",
        "ssh://-l@host",
        "ssh://host/$(x)",
        "ssh://host/../x",
        "adb://-s",
        "adb://",
    ],
)
def test_what_is_no_address(text, tmp_path):
    root = set_up_boards(tmp_path, pi5=text)
    with pytest.raises(PipelineError, match=r"native_boards: is .*; must be a table of names, "):
        find_setup("pi5", root)


def test_a_board_runs_what_either_sdk_is_built_for(tmp_path, sdk, programs, monkeypatch):
    monkeypatch.setattr("pipeline.features.native.setups.find_spec", lambda name: None)
    root = set_up_boards(tmp_path, pi5="ssh://pi5", phone="adb://R5CT")
    assert find_setup("pi5", root).problem.startswith("ssh is not installed; ")
    assert find_setup("phone", root).problem.startswith("adb is not installed; ")
    programs("ssh", "adb", "cmake", "g++")
    assert find_setup("pi5", root).problem.startswith("set native_sdk_aarch64 in ")
    assert find_setup("phone", root).problem.startswith("set native_runner_android in ")
    set_up_boards(tmp_path, sdk, pi5="ssh://pi5")
    setup = find_setup("pi5", root)
    facts = setup.describe(FileDigests())
    assert setup.problem == "" and facts["address"] == "ssh://pi5"
    assert facts[platform.machine()]["libexecutorch.so"]


def test_what_is_unused_for_longest_leaves_a_board():
    listing = "4\tholder\n40\tdata-new.pte\n80\trunner-now\n20\tdata-old.pte\n16\trunner-old\n"
    in_use = {"runner-now"}
    assert choose_evictions(listing, in_use, 1024, 200 * 1024) == []
    assert choose_evictions(listing, in_use, 1024, 160 * 1024) == ["runner-old"]
    assert choose_evictions(listing, in_use, 20 * 1024, 150 * 1024) == [
        "runner-old",
        "data-old.pte",
    ]
    assert choose_evictions(listing, in_use, 2**20, 2**20) is None


def write_emulator(folder, version):
    """Write a stand-in for QEMU, which reports its version and two processors."""
    path = folder / "qemu-aarch64-static"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "qemu-aarch64 version {version} (X)"\n'
        'printf "Available CPUs:\\n  cortex-a72\\n  max\\n"\n'
    )
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "device", "warns"),
    [
        ("7.2.22", "qemu:max", True),
        ("7.2.22", "qemu:max,sme=off", False),
        ("7.2.22", "qemu:cortex-a72", False),
        ("10.0.3", "qemu:max", False),
    ],
)
def test_an_emulator_that_is_wrong_about_sme(tmp_path, monkeypatch, version, device, warns):
    write_emulator(tmp_path, version)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    emulator._ask.cache_clear()
    (tmp_path / "partition_configs").mkdir()
    config = (
        f"model: one\nmethods: {{f: {{partitioners: []}}}}\nvalidate: {{devices: ['{device}']}}\n"
    )
    (tmp_path / "partition_configs" / "one.yaml").write_text(config)
    remarks = [str(problem) for problem in emulator.find_remarks(Plan(open_workspace(tmp_path)))]
    emulator._ask.cache_clear()
    assert bool(remarks) == warns
    if warns:
        assert remarks[0].startswith("one: validate.devices: QEMU 7.2.22 emulates SME")
        assert remarks[0].endswith("use a newer one, or qemu:max,sme=off")


def test_a_processor_that_the_emulator_does_not_know(tmp_path, monkeypatch):
    write_emulator(tmp_path, "10.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    emulator._ask.cache_clear()
    assert emulator.explain_unknown_cpu("qemu:max,sme=off") == ""
    text = emulator.explain_unknown_cpu("qemu:cortex-a27")
    emulator._ask.cache_clear()
    assert text.startswith("did you mean 'cortex-a72'? known: qemu:cortex-a53, ")
    monkeypatch.setenv("PATH", "")
    assert emulator.explain_unknown_cpu("qemu:cortex-a27") == ""  # it can't be queried
    emulator._ask.cache_clear()
