"""Disks that are full, or become full: each message names the folder and the bytes, and a build
continues where there is room elsewhere.

`DISK_SIZES=12 pytest -m slow tests/trust/test_full_disks.py` tries that many sizes for each folder.
"""

import errno
import io
import os
import re
import shutil
from functools import partial

import pytest

from pipeline.features.remedies.explain_error import explain_error
from pipeline.run.isolated import run_isolated
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from tests.support.bench import bench_of
from tests.support.disks import can_mount, in_small_disk, mount_small
from tests.support.forked import run_doit, run_in_fork
from tests.support.permissions import mode, obey_permissions
from tests.support.team import Package, Sources, make_checkout

SIZES = int(os.environ.get("DISK_SIZES", "2"))
NEVER = ("Traceback", "exclude the operator by", "XNNHeader", "inline_container", "Errno")
ROOM = r"\S+: No space left on device \([\d,]+ bytes are free, (more|[\d,]+) are needed\)"
needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs the right to mount")


@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize("place", ["temporary", "build", "workspace"])
def test_a_full_disk_is_named_whichever_stage_fills_it(tmp_path, place):
    """On the smallest disks the export fails, on the largest the last report."""
    bench = bench_of("pair", tmp_path)
    kilobytes = {"temporary": (4, 16), "build": (4, 80), "workspace": (60, 400)}[place]
    step = max(1, (kilobytes[1] - kilobytes[0]) // max(1, SIZES - 1))
    failed = 0
    for size in range(kilobytes[0], kilobytes[1] + 1, step):
        shutil.rmtree(bench.root / "build", ignore_errors=True)
        shutil.rmtree(bench.store, ignore_errors=True)
        code, output = in_small_disk(bench, place, size, "lower", "validate")
        assert not any(words in output for words in NEVER), output
        if code == 0:
            continue
        failed += 1
        lines = [line for line in output.splitlines() if re.match(r"\S+:\S+ failed", line)]
        assert lines, output
        for line in lines:
            assert re.search(ROOM, line) and str(tmp_path) in line, line
    assert failed


@needs_mounts
def test_a_store_that_fills_within_a_blob_costs_the_action_nothing(tmp_path):
    """The store's disk has room for 2 MB of a 3 MB weight; the rest of the run goes elsewhere."""
    versions = tmp_path / "versions"
    versions.mkdir()
    checkout = make_checkout(tmp_path / "w", tmp_path / "store", versions)
    checkout.write(Sources({"ada": Package()}, tasks=False))
    exporter = (
        "import torch\n\n\ndef export_methods():\n"
        "    layer = torch.nn.Linear(1024, 768).requires_grad_(False)\n"
        "    return {'forward': torch.export.export(layer, (torch.ones(1, 1024),))}\n"
    )
    (checkout.root / "models" / "trained.py").write_text(exporter)
    checkout.store.mkdir()
    prepare = partial(mount_small, checkout.store, 2048)
    code, output = run_doit(checkout.root, ["lower"], checkout.environment, 120, prepare)
    assert code == 0, output
    assert f"store {checkout.store}: can't be written (No space left on device" in output
    assert checkout.bytes_of("ada", "ada.pte")
    assert {*checkout.outcomes().values()} == {"built"}


def test_a_refused_folder_of_a_shared_store_is_named(tmp_path):
    """It is another user's: the fan-out folder, not the file that is moved there."""
    root, overflow = tmp_path / "store", tmp_path / "build" / ".store"
    store = Store(root)
    blob = store.put(b"content")
    folder = store.blob_path(blob).parent
    store.blob_path(blob).unlink()

    def use():
        obey_permissions()
        mine = Store(root, overflow=overflow)
        assert mine.put(b"content") == blob
        assert mine.why_overflow() == f"Permission denied: {folder}"

    with mode([folder], 0o555):
        assert run_in_fork(use, log := tmp_path / "log") == 0, log.read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_that_takes_nothing_hides_no_error(monkeypatch):
    """An exporter's traceback goes to the log, the error itself to the scheduler."""

    def fail():
        raise SourceError("no such model")

    log = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.FileIO(log, "w"), write_through=True))
    with pytest.raises(SourceError, match="no such model"):
        run_isolated(fail)


def test_what_a_full_disk_led_to_is_not_what_is_reported(tmp_path, monkeypatch):
    """Torch's writer and a backend's reader raise errors of their own."""
    monkeypatch.chdir(tmp_path)

    def fail():
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            text = "[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"
            raise RuntimeError(text)  # noqa: B904  as torch does

    with pytest.raises(RuntimeError) as caught:
        fail()
    message = explain_error(caught.value, tmp_path)
    assert re.search("^" + ROOM + "; free disk space", message)
