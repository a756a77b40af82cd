"""What the machine and the process give an exporter is the same everywhere, or in the key."""

import os
import time

import pytest

from pipeline.plan.kinds.export import ExportInputs, export_key
from pipeline.plan.plan import Plan
from pipeline.plan.reads import Surroundings
from pipeline.plan.status import export_status
from pipeline.store import startup, toolchain
from tests.trust.test_exporter_inputs import build, site, text

__all__ = ["site"]  # a fixture

# What an exporter can query about its process, and how another user's process differs.
ALIKE = {
    "time zone": "VALUE += time.timezone",
    "umask": "VALUE += os.umask(0o77)",
    "working folder": "VALUE += len(Path.cwd().parts)",
    "a relative path": "VALUE += float(open('w.txt').read())",
    "home, but for its name": "VALUE += (Path.home() / 'w.txt').exists()",
    "names of variables": "VALUE += len(os.environ.get('TZ', '') + os.environ.get('LC_ALL', ''))",
    "locale": "VALUE += len(locale.setlocale(locale.LC_ALL, '')) + len(locale.nl_langinfo(14))",
    "encoding of files": "VALUE += len(open('w.txt').encoding)",
    "a started process": "VALUE += len(subprocess.check_output(['/bin/sh', '-c', 'echo $LANG']))",
}


@pytest.fixture
def elsewhere(tmp_path):
    """Change the surroundings of this process to another user's."""
    before, umask, folder = dict(os.environ), os.umask(0o022), os.getcwd()

    def change():
        os.environ.update(TZ="Asia/Tokyo", LC_ALL="POSIX", LANG="de_DE.ISO-8859-1")
        os.environ["HOME"] = str(tmp_path / "another")
        time.tzset()
        os.umask(0o077)
        os.chdir(tmp_path)

    yield change
    os.environ.clear()
    os.environ.update(before)
    time.tzset()
    os.umask(umask)
    os.chdir(folder)


@pytest.mark.slow
def test_surroundings_are_alike_in_all_exports(site, elsewhere):
    """One exporter queries everything: any difference changes its number."""
    text("w.txt", "1")(site)
    site.write("import locale, subprocess, time\nVALUE = 0\n" + "\n".join(ALIKE.values()))
    _, here = build(site.workspace())
    elsewhere()
    before = dict(os.environ), os.getcwd(), time.tzname
    assert build(site.workspace()) == ("up-to-date", here)
    assert build(site.workspace("empty")) == ("stale", here)
    assert (dict(os.environ), os.getcwd(), time.tzname) == before  # the worker's own
    assert os.umask(0o077) == 0o077


@pytest.mark.slow
def test_the_name_of_the_home_folder_counts_where_the_exporter_asks_for_it(site, monkeypatch):
    site.write("VALUE = len(os.environ['HOME'])")
    build(site.workspace())
    monkeypatch.setenv("HOME", str(site.outside))
    status = export_status(Plan(site.workspace()), "a")
    assert status.state == "stale" and "HOME" in status.reason


# What is in the key


def key():
    startup.startup_code.cache_clear()
    toolchain.processor.cache_clear()
    inputs = ExportInputs("m", "models/m.py", "source", Surroundings.present())
    return export_key(inputs)


@pytest.fixture(autouse=True)
def forgetting():
    yield
    startup.startup_code.cache_clear()
    toolchain.processor.cache_clear()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("NPY_DISABLE_CPU_FEATURES", True),
        ("GLIBC_TUNABLES", True),
        ("LD_PRELOAD", True),
        ("LD_AUDIT", True),
        ("PYTHONOPTIMIZE", True),
        ("PYTHONWARNINGS", True),
        ("ATEN_CPU_CAPABILITY", True),
        ("MKL_CBWR", True),
        ("LD_LIBRARY_PATH", False),  # by what is there
        ("OMP_NUM_THREADS", False),  # a worker sets it to one
        ("TZ", False),
        ("LANG", False),
    ],
)
def test_variables_that_choose_other_code_count(name, counts, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    before = key()
    monkeypatch.setenv(name, "1")
    assert (key() != before) == counts


def test_libraries_that_the_loader_takes_first_count_by_content(tmp_path, monkeypatch):
    library = tmp_path / "libfast.so.1"
    keys = [key()]
    for name, value in (("LD_PRELOAD", f"{library}:other.so"), ("LD_LIBRARY_PATH", str(tmp_path))):
        monkeypatch.setenv(name, value)
        for content in (b"1", b"22"):
            library.write_bytes(content)
            keys.append(key())
    assert len({str(each) for each in keys}) == 5
    library.rename(tmp_path / "libpython3.11.so.1.0")  # its versioned name
    monkeypatch.delenv("LD_PRELOAD")
    assert key() == keys[0]


def test_a_library_for_this_processor_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    before = key()
    library = tmp_path / "glibc-hwcaps" / "x86-64-v3" / "libfast.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"1")
    assert key() != before


X86 = "fpu cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"
V3 = f"{X86} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"vendor_id": "GenuineIntel", "flags": "fpu"}, "GenuineIntel x86_64"),
        ({"vendor_id": "GenuineIntel", "flags": X86}, "GenuineIntel x86-64-v2"),
        ({"vendor_id": "AuthenticAMD", "flags": V3}, "AuthenticAMD x86-64-v3"),
        ({"vendor_id": "GenuineIntel", "flags": f"{V3} avx_vnni"}, "GenuineIntel x86-64-v3+vnni"),
        (
            {"vendor_id": "GenuineIntel", "flags": f"{V4} amx_tile avx512_bf16"},
            "GenuineIntel x86-64-v4+amx+bf16",
        ),
        (
            {"CPU implementer": "0x41", "CPU part": "0xd40", "Features": "fp asimddp sve i8mm"},
            "0x41 0xd40 aarch64+dot+i8mm+sve",
        ),
        ({}, "x86_64"),
    ],
)
def test_a_processor_counts_by_what_kernels_can_use(fields, name, monkeypatch):
    monkeypatch.setattr(toolchain, "cpu_fields", lambda: fields)
    machine = "aarch64" if "Features" in fields else "x86_64"
    monkeypatch.setattr(toolchain.platform, "machine", lambda: machine)
    before = key()
    assert before["processor"] == name
    monkeypatch.setattr(toolchain, "cpu_fields", lambda: {**fields, "cpu MHz": "1"})
    assert key() == before
