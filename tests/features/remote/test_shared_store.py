"""A store backed by a remote: another machine's results are never trusted unread."""

import json
import shutil
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.features.remote import remote
from pipeline.features.remote.remote import RemoteSettings
from pipeline.store import digest
from pipeline.store.store import MissingBlobError, Store
from tests.support.bench import Bench
from tests.support.keys import write_keys

KEY = {"kind": "test", "n": 1}


@pytest.fixture
def place(site):
    """A folder, then S3."""
    return site.settings()


@pytest.fixture
def filled(tmp_path, place):
    """A store that has pushed a result with its blob, and the digests of both."""
    store = Store(tmp_path / "first", place)
    blob = store.put(b"content")
    return store, store.put_result(KEY, {"blobs": [blob]}, seconds=2.0), blob


@pytest.fixture
def other(tmp_path, place):
    return Store(tmp_path / "second", place)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_another_store_reads_through(filled, other):
    _, action, blob = filled
    assert other.get(action).seconds == 2.0
    assert other.get(action).result == {"blobs": [blob]}
    assert other.intact([blob])
    assert other.read(blob) == b"content" == b"".join(other.stream(blob))
    assert Store(other.root).read(blob) == b"content"  # kept


@pytest.mark.parametrize("read", ["read", "verified_path", "stream", "intact", "has"])
def test_each_way_to_a_blob_asks_the_remote(filled, other, read):
    _, _, blob = filled
    found = getattr(other, read)([blob] if read == "intact" else blob)
    assert list(found) if read == "stream" else found


def test_a_look_fetches_no_blob(filled, other):
    _, action, blob = filled
    absent = digest.hash_bytes(b"nowhere")
    other.ask([action, absent])
    other.look([blob, absent])
    assert other.obtainable([blob]) and not other.obtainable([blob, absent])
    names = [path.name for path in files(other.root)]
    assert names == ["README", f"{action[2:]}.json", "vouchers"]
    other.fetch([blob, absent])
    assert Store(other.root).intact([blob])


def test_results_are_pushed_with_all_their_blobs_after_a_remote_was_wiped(
    filled, site, monkeypatch
):
    """A long build remembers only for a while what the remote contains."""
    store, _, blob = filled
    before = site.names()
    for name in before:
        site.remove(name)
    monkeypatch.setattr(remote, "REMEMBERED", 0.0)
    store.put_result(KEY, {"blobs": [blob]}, seconds=2.0)
    assert site.names() == before


def test_corrupt_local_blob_comes_back_from_the_remote(filled):
    store, _, blob = filled
    store.blob_path(blob).chmod(0o644)
    store.blob_path(blob).write_bytes(b"damaged")
    assert Store(store.root, store.remote.settings).read(blob) == b"content"


@pytest.mark.parametrize("damage", [b"", b"conten", b"CONTENT", b"content and more"])
def test_lying_remote_is_a_miss(filled, other, site, damage):
    _, _, blob = filled
    (name,) = (name for name in site.names() if name.startswith("blobs/"))
    site.write(name, damage)
    assert not other.has(blob)
    with pytest.raises(MissingBlobError):
        other.read(blob)
    assert files(other.root / "blobs") == []


def test_result_of_another_action_is_a_miss(filled, other, site):
    store, action, _ = filled
    second = store.put_result({"kind": "other"}, {"files": {}})
    one, two = (name for name in site.names() if name.startswith("actions/"))
    first_content, second_content = site.read(one), site.read(two)
    site.write(one, second_content)
    site.write(two, first_content)
    assert other.get(action) is None
    assert other.get(second) is None


@settings(max_examples=40)
@given(data=st.data())
def test_any_change_of_a_stored_record_is_a_miss_or_the_same(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("r")
    place = RemoteSettings(f"file://{folder}/remote", unsigned=True)
    action = Store(folder / "a", place).put_result(KEY, {"x": [1, "two"]}, 1.0)
    (path,) = files(folder / "remote" / "actions")
    content = bytearray(path.read_bytes())
    index = data.draw(st.integers(0, len(content) - 1))
    content[index] = data.draw(st.integers(0, 255))
    path.chmod(0o644)
    path.write_bytes(content)
    entry = Store(folder / "b", place).get(action)
    assert entry is None or entry.result == {"x": [1, "two"]}


def test_read_only_remote_is_not_written(tmp_path):
    store = Store(tmp_path / "a", RemoteSettings(url=f"file://{tmp_path}/remote", writable=False))
    store.put_result(KEY, {"blobs": [store.put(b"x")]})
    assert not (tmp_path / "remote").exists()


# Whole builds


def colleague(built, tmp_path):
    """A colleague's workspace: the same files, an empty store."""
    shutil.copytree(
        built.root,
        tmp_path / "colleague",
        ignore=shutil.ignore_patterns(".store", "build", ".doit*"),
    )
    return Bench(tmp_path / "colleague")


def fill(built, url, **environment):
    """Build everything again, with the remote."""
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    assert built.doit(PTE_PIPELINE_REMOTE=url, **environment) == 0, built.output


def remote_line(bench):
    (line,) = (line for line in bench.output.splitlines() if line.startswith("remote: "))
    return line


def remote_record(bench):
    return json.loads((bench.root / "build" / "run.json").read_text())["remote"]


@pytest.mark.slow
def test_colleague_takes_packages_from_the_remote(built, tmp_path):
    """Signed packages first; then with another key, with which they count as missing."""
    url = f"file://{tmp_path}/remote"
    private, public = write_keys(tmp_path / "ours")
    _, stranger = write_keys(tmp_path / "theirs")
    fill(built, url, PTE_PIPELINE_SIGNING_KEY=str(private))
    assert remote_record(built)["pushed"] > 10
    assert "; 0 not there" not in remote_line(built)

    bench = colleague(built, tmp_path)
    trusting = {"PTE_PIPELINE_REMOTE": url, "PTE_PIPELINE_TRUSTED_KEYS": str(public)}
    assert bench.doit("plan", **trusting) == 0, bench.output
    assert "to do" not in bench.output and "in the store" in bench.output
    assert files(bench.store / "actions") and not files(bench.store / "blobs")  # nobody needs them
    assert bench.doit(**trusting) == 0, bench.output
    assert set(bench.outcomes().values()) == {"hit"}
    assert bench.bytes_of("pair", "pair.pte") == built.bytes_of("pair", "pair.pte")
    assert remote_record(bench)["pushed"] == 0
    assert remote_record(bench)["hits"] > 3
    assert not list((bench.root / "build" / ".logs").glob("*"))  # no worker ran
    assert remote_line(bench)

    assert bench.doit(**trusting) == 0
    assert bench.output == "up to date: 1 package\n"  # without a word about the remote

    shutil.rmtree(bench.root / "build")
    shutil.rmtree(bench.store)
    assert bench.doit("plan", PTE_PIPELINE_REMOTE=url, PTE_PIPELINE_TRUSTED_KEYS=str(stranger)) == 0
    assert "to do" in bench.output and "in the store" not in bench.output


@pytest.mark.slow
def test_blobs_that_a_remote_has_by_name_alone_are_made_again(built, tmp_path):
    """A plan says that they are in the store, and the build then finds that they aren't."""
    shared = {
        "PTE_PIPELINE_REMOTE": f"file://{tmp_path}/remote",
        "PTE_PIPELINE_REMOTE_TRUST": "unsigned",
    }
    fill(built, shared["PTE_PIPELINE_REMOTE"], PTE_PIPELINE_REMOTE_TRUST="unsigned")
    for path in files(tmp_path / "remote" / "blobs"):
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    bench = colleague(built, tmp_path)
    assert bench.doit("plan", **shared) == 0, bench.output
    assert "in the store" in bench.output and "to do" not in bench.output
    assert bench.doit("lower", **shared) == 0, bench.output
    assert bench.bytes_of("pair", "pair.pte") == built.bytes_of("pair", "pair.pte")
    again = colleague(bench, tmp_path / "again")
    assert again.doit("lower", **shared) == 0, again.output
    assert set(again.outcomes().values()) == {"hit"}  # damaged files were pushed again


@pytest.mark.slow
def test_unsigned_results_are_ignored_and_counted_where_a_key_is_configured(built, tmp_path):
    url = f"file://{tmp_path}/remote"
    fill(built, url, PTE_PIPELINE_REMOTE_TRUST="unsigned")
    _, public = write_keys(tmp_path / "keys")
    bench = colleague(built, tmp_path)
    environment = {"PTE_PIPELINE_REMOTE": url, "PTE_PIPELINE_TRUSTED_KEYS": str(public)}
    assert bench.doit("lower", **environment) == 0, bench.output
    assert bench.outcomes()["export pair"] == bench.outcomes()["link pair"] == "built"
    assert remote_record(bench)["unsigned"] > 3
    assert "without a trusted signature, ignored" in remote_line(bench)
    assert bench.bytes_of("pair", "pair.pte") == built.bytes_of("pair", "pair.pte")


@pytest.mark.slow
def test_untrusted_build_reads_and_does_not_write(built, tmp_path):
    url = f"file://{tmp_path}/remote"
    fill(built, url, PTE_PIPELINE_REMOTE_TRUST="unsigned")
    before = {path: path.read_bytes() for path in files(tmp_path / "remote")}
    bench = colleague(built, tmp_path)
    bench.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    environment = {"PTE_PIPELINE_REMOTE": url, "PTE_PIPELINE_UNTRUSTED": "1"}
    environment["PTE_PIPELINE_REMOTE_TRUST"] = "unsigned"
    assert bench.doit("lower", **environment) == 0, bench.output
    assert bench.outcomes()["compile pair/encode"] == "hit"
    assert bench.outcomes()["compile pair/decode"] == "built"
    assert {path: path.read_bytes() for path in files(tmp_path / "remote")} == before


@pytest.mark.slow
def test_remote_that_never_answers_costs_a_bounded_time(built, tmp_path):
    """A socket that accepts connections and never answers stands in for S3."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (built.root / "pyproject.toml").write_text(
            "[tool.pte-pipeline]\n"
            'remote = "s3://bucket/folder"\n'
            'remote_trust = "unsigned"\n'
            "remote_timeout = 0.5\n"
            'remote_options = {key = "k", secret = "s", '
            f'endpoint_url = "http://127.0.0.1:{port}"}}\n'
        )
        built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
        assert built.doit("lower", timeout=120) == 0, built.output
    assert built.outcomes()["compile pair/decode"] == "built"
    assert remote_record(built)["problem"]
    assert remote_line(built)
    assert "Traceback" not in built.output


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"PTE_PIPELINE_REMOTE": "nonsense://x", "PTE_PIPELINE_REMOTE_TRUST": "unsigned"},
            "nonsense",
        ),
        ({"PTE_PIPELINE_REMOTE": "file:///x", "PTE_PIPELINE_TRUSTED_KEYS": "none.pem"}, "none.pem"),
    ],
)
@pytest.mark.slow
def test_remote_that_cannot_work_is_reported(built, variables, words):
    assert built.doit("cache", **variables) == 1
    assert words in built.output.splitlines()[-1]
    assert "Traceback" not in built.output
