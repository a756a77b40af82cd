"""What an exporter's process hands over is stored, without any visible effect in that process."""

import os

import pytest

from pipeline.features.exporters.handover import handing_over
from pipeline.features.tracing.tracer import Tracer, has_kernel_view
from pipeline.run.isolated import run_isolated
from pipeline.store.digest import hash_bytes
from pipeline.store.store import Store


@pytest.mark.parametrize("kernel", [True, False])
def test_what_a_fork_hands_over_is_stored(tmp_path, kernel):
    store = Store(tmp_path / "store")
    kernel = kernel and has_kernel_view()
    watch = Tracer(lambda path: path.startswith(str(tmp_path)), lambda kind, path: "seen", kernel)

    def give(handover):
        blobs = [handover.put(data) for data in (b"first", b"", b"second", b"first")]
        if (child := os.fork()) == 0:
            handover._blobs.flush()  # as an interpreter does on exit
            os._exit(0)
        os.waitpid(child, 0)
        handover.archive.write(b"arch")
        handover.archive.write(b"ive")
        return [blobs, handover.to_json()]

    with handing_over(store) as handover:
        blobs, given = run_isolated(lambda: give(handover), watch)
        archive = handover.store_all(store, given)
    assert store.read(archive) == b"archive"
    assert [store.read(blob) for blob in blobs] == [b"first", b"", b"second", b"first"]
    assert not watch.seen and not watch.written
    assert not [*(store.root / "tmp").iterdir()]
    if kernel:
        assert watch.view == "kernel"


def test_what_is_not_stored_leaves_nothing(tmp_path):
    store = Store(tmp_path / "store")
    with handing_over(store) as handover:
        handover.put(b"data")
    assert not [*(store.root / "tmp").iterdir()]
    assert not store.has(hash_bytes(b"data"))
