"""What a key records about a distribution changes with whatever Python would import from it."""

import base64
import hashlib
import json
import os
import shutil
import sys
import time

import pytest

from pipeline.store import distributions
from pipeline.store.file_digests import RACY_NS

CODE = {
    "acme/__init__.py": b"NAME = 'acme'\n",
    "acme/deep/kernel.py": b"SCALE = 2\n",
    "acme/data.yaml": b"a: 1\n",
    "acme/native.so": b"\x7fELF" * 50,
}


def settle():
    """Wait until files are old enough for their digests to be cached."""
    time.sleep(2.5 * RACY_NS / 1e9)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions, first on the path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "site"
    install(folder, "acme", CODE)
    monkeypatch.syspath_prepend(str(folder))
    settle()
    return folder


def install(folder, name, files, record=True, **more):
    """Write the files of a distribution, with RECORD last, as installers do."""
    info = f"{name}-1.0.dist-info"
    files = {**files, f"{info}/METADATA": f"Name: {name}\nVersion: 1.0\n".encode(), **more}
    rows = []
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    if record:
        time.sleep(0.02)
        (folder / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,", ""]))


def identity(name="acme"):
    distributions.identity.cache_clear()
    sys.path_importer_cache.clear()
    return distributions.identity(name)


def write(path, content):
    path.write_bytes(content)


def write_in_the_old_times(path, content):
    """Write a file and keep its times, like `cp --preserve` or a tool that restores times."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange(path, content):
    """Replace a file as editors do: by renaming a new one."""
    path.with_name("other").write_bytes(content)
    path.with_name("other").rename(path)


def test_untouched_files_are_their_version(site):
    assert identity() == identity() == "1.0"
    assert identity("nowhere-to-be-found") == "not installed"


@pytest.mark.parametrize("edit", [write, write_in_the_old_times, exchange])
@pytest.mark.parametrize("name", CODE)
def test_a_patched_file_counts_by_content(site, edit, name):
    before = identity()
    edit(site / name, CODE[name][:-2] + b"3\n")  # the same size
    patched = identity()
    assert patched != before and patched.startswith("1.0, changed: ")
    settle()
    assert identity() == patched
    assert identity() == patched  # from the cache
    edit(site / name, CODE[name])
    assert identity() == "1.0"


def test_new_and_missing_files_count(site):
    (site / "acme/deep/more.py").write_bytes(b"")
    added = identity()
    (site / "acme/deep/more.py").unlink()
    assert identity() == "1.0" != added
    (site / "acme/data.yaml").unlink()
    assert identity() not in ("1.0", added)


def test_what_python_caches_and_headers_do_not_count(site):
    for name in ("acme/deep/__pycache__/kernel.cpython-311.pyc", "acme/include/x.h", "acme/a.pyi"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_bytes(b"x")
    assert identity() == "1.0"


def test_a_copied_environment_is_what_it_was(site, tmp_path, monkeypatch):
    """For example a container image, where no timestamps can be relied on."""
    for path in sorted(site.rglob("*")):
        os.utime(path)
    os.utime(site / "acme-1.0.dist-info/RECORD", (0, 0))
    assert identity() == "1.0"
    write(site / "acme/native.so", b"\x7fELg" * 50)
    assert identity() != "1.0"


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2], ids=["new times", "kept times"])
def test_a_copy_of_a_patched_environment_is_patched(site, tmp_path, monkeypatch, copy):
    """All files of a copy are as old as its RECORD."""
    exchange(site / "acme/deep/kernel.py", b"SCALE = 3\n")
    patched = identity()
    shutil.copytree(site, tmp_path / "copy", copy_function=copy)
    monkeypatch.syspath_prepend(str(tmp_path / "copy"))
    (tmp_path / "copy/acme-1.0.dist-info/RECORD").touch()
    assert identity() == patched != "1.0"


def test_a_folder_on_the_path_in_its_place_counts(site, tmp_path, monkeypatch):
    (tmp_path / "checkout/acme").mkdir(parents=True)
    (tmp_path / "checkout/acme/__init__.py").write_bytes(b"NAME = 'mine'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "checkout"))
    first = identity()
    (tmp_path / "checkout/acme/__init__.py").write_bytes(b"NAME = 'ours'\n")
    assert len({"1.0", first, identity()}) == 3


def test_an_editable_one_counts_by_content_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for name in ("here", "there"):
        sources, site = tmp_path / name / "src", tmp_path / name / "site"
        install(sources, "acme", CODE, record=False)
        about = json.dumps({"url": sources.as_uri(), "dir_info": {"editable": True}}).encode()
        pth = {"acme.pth": f"{sources}\n".encode(), "acme-1.0.dist-info/direct_url.json": about}
        install(site, "acme", pth)
        with monkeypatch.context() as context:
            context.setattr(sys, "path", [str(site), str(sources), *sys.path])
            settle()
            found.append(identity())
            assert identity() == found[-1]
            write_in_the_old_times(sources / "acme/deep/kernel.py", b"SCALE = 3\n")
            found.append(identity())
    assert found[0] == found[2] != found[1] == found[3]
    assert "1.0" not in found


def test_without_record_all_counts(site):
    (site / "acme-1.0.dist-info/RECORD").unlink()
    first = identity()
    write_in_the_old_times(site / "acme/deep/kernel.py", b"SCALE = 3\n")
    assert len({"1.0", first, identity()}) == 3


def test_a_damaged_cache_is_made_again(site, tmp_path):
    identity()
    (cached,) = (tmp_path / "cache").rglob("*.json")
    for content in (b"", b"{}", b'{"own": 1}', b"[]", b'{"names": 3, "own": []}'):
        cached.write_bytes(content)
        assert identity() == "1.0"


def test_links_that_lead_nowhere_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "looped").mkdir()
    (tmp_path / "looped" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = distributions.module_identity("looped")
    (tmp_path / "looped" / "loop.npz").symlink_to("loop.npz")
    (tmp_path / "looped" / "gone.py").symlink_to("missing.py")
    distributions.module_identity.cache_clear()
    assert distributions.module_identity("looped") == before
