import subprocess
import sys

import pytest

from pipeline.store.store import Store
from pipeline.store.usage import Usage, add_usage, read_usage


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_usage_adds_up_over_runs(store):
    store.put(b"x")
    add_usage(store, {"compile": Usage(hits=1, saved=2.5), "link": Usage(misses=1, spent=1.0)})
    add_usage(store, {"compile": Usage(hits=2, misses=1, saved=0.5, spent=3.0)})
    assert read_usage(store) == {"compile": Usage(3, 1, 3.0, 3.0), "link": Usage(0, 1, 0.0, 1.0)}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"compile": 3}', b'{"compile": {"x": 1}}'])
def test_damaged_counts_begin_anew(store, content):
    store.put(b"x")
    (store.root / "usage.json").write_bytes(content)
    assert read_usage(store) == {}
    add_usage(store, {"link": Usage(hits=1)})
    assert read_usage(store) == {"link": Usage(hits=1)}


def _count(root, times):
    code = (
        "import sys; from pathlib import Path; from pipeline.store.store import Store\n"
        "from pipeline.store.usage import Usage, add_usage\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    add_usage(Store(Path(sys.argv[1])), {'link': Usage(hits=1)})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(root), str(times)])


def test_no_count_of_two_processes_is_lost(store):
    processes = [_count(store.root, 20) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert read_usage(store) == {"link": Usage(hits=40)}
