"""Releases at an address and their index, including on addresses that fail."""

import json
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.features.publish import fetch
from pipeline.features.publish import release as release_module
from pipeline.features.publish.fetch import fetch_package
from pipeline.features.publish.index import find_best, read_index, write_index
from pipeline.features.publish.release import PART, describe_file
from pipeline.features.publish.upload import (
    INDEX,
    RELEASE,
    explaining,
    find_missing,
    open_address,
    send,
)
from pipeline.features.publish.verb import _publish, run
from pipeline.plan.status import Status
from pipeline.store.digest import hash_bytes, hash_json
from pipeline.store.errors import PipelineError
from tests.support.sites import Site, s3_options


def make_release(package="vision", weight=b"w", **facts):
    """Return a release of a small package, and the contents of its files."""
    contents = {
        f"{package}.pte": weight * 1000,
        f"{package}.ptd": weight * 10,
        "manifest.json": b"{}",
        "README.md": f"# {package}".encode(),
    }
    record = {
        "package": package,
        "model": "vision",
        "target": "android-arm64",
        "executorch": "1.5.1",
        "verdict": "passed",
        "devices": {"executorch": "passed"},
        "files": [describe_file(name, content) for name, content in contents.items()],
        **facts,
    }
    digest = hash_json(record)
    return {**record, "digest": digest, "path": f"{package}/{digest[:12]}"}, contents


def publish(files, *releases):
    with explaining(files):
        lines = [_publish(files, *release, dry_run=False) for release in releases]
        write_index(files, [record for record, _ in releases])
    return lines


class CutFileSystem(MemoryFileSystem):
    """Refuses writes after the first few."""

    protocol = "cut"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    left = 0

    def mv(self, source, target, **options):
        if CutFileSystem.left <= 0:
            raise ConnectionError("the line was cut")
        CutFileSystem.left -= 1
        super().mv(source, target, **options)


fsspec.register_implementation("cut", CutFileSystem, clobber=True)


@pytest.fixture(params=["file", "memory"])
def address(request, tmp_path):
    if request.param == "file":
        return (tmp_path / "hub").as_uri()
    return f"memory://{secrets.token_hex(8)}"


def test_a_release_is_sent_once_and_fetched(address, tmp_path):
    files = open_address(address, tmp_path)
    release, contents = make_release()
    assert publish(files, (release, contents)) == [f"{release['path']}: sent 4 files, 1.0 kB"]
    site = Site(address)
    assert site.names() == {
        INDEX,
        *(f"{release['path']}/{name}" for name in (*contents, RELEASE)),
    }
    before = {name: site.read(name) for name in site.names()}
    assert publish(files, (release, contents)) == [f"{release['path']}: already uploaded"]
    assert {name: site.read(name) for name in site.names()} == before
    index = json.loads(before[INDEX])
    assert index["targets"] == {"android-arm64": {"vision": release["path"]}}
    assert index["releases"] == [release]

    path = fetch_package(address, "android-arm64", folder=tmp_path / "assets")
    assert path == tmp_path / "assets" / release["path"] / "vision.pte"
    assert path.read_bytes() == contents["vision.pte"]
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"vision.pte", "vision.ptd", "manifest.json"}


def test_an_address_must_be_named():
    with pytest.raises(PipelineError, match=r"name an address: --to s3://bucket/models"):
        list(run(None, []))


def test_a_dry_run_sends_nothing(tmp_path):
    files = open_address((tmp_path / "hub").as_uri(), tmp_path)
    release, contents = make_release()
    line = _publish(files, release, contents, dry_run=True)
    assert line == f"{release['path']}: would send 4 files, 1.0 kB"
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("writes", range(6))
def test_a_push_that_is_cut_names_nothing_and_goes_on(tmp_path, writes):
    CutFileSystem.store.clear()
    release, contents = make_release()
    CutFileSystem.left = writes
    files = open_address("cut://hub", tmp_path)
    with pytest.raises(
        PipelineError, match=r"can't be reached \(ConnectionError: the line"
    ) as error:
        publish(files, (release, contents))
    assert f"{INDEX} has nothing new; run the same command again" in str(error.value)
    assert (f"({writes} of 4 files were sent)" in str(error.value)) == (writes < 4)
    CutFileSystem.left = 100
    assert files.size(INDEX) is None
    assert len(find_missing(files, release)) == max(0, 4 - writes)
    publish(files, (release, contents))
    assert 100 - CutFileSystem.left == 6 - writes  # existing files aren't sent again
    assert read_index(files)["releases"] == [release]
    assert not [name for name in CutFileSystem.store if "/tmp/" in name]


def test_another_content_is_never_overwritten(tmp_path):
    files = open_address((tmp_path / "hub").as_uri(), tmp_path)
    release, contents = make_release()
    name = f"{release['path']}/vision.pte"
    other = bytes(len(contents["vision.pte"]))
    files.write(name, [other])
    with pytest.raises(PipelineError, match=rf"{name} has different content, which is never"):
        _publish(files, release, contents, dry_run=False)
    assert (tmp_path / "hub" / name).read_bytes() == other


def test_a_file_that_changes_while_it_is_sent_is_not_there(tmp_path):
    files = open_address((tmp_path / "hub").as_uri(), tmp_path)
    release, _ = make_release()
    with pytest.raises(PipelineError, match=r"vision\.pte: changed while it was published"):
        send(files, release, "vision.pte", b"x" * 1000)
    assert files.names() == []


def test_what_others_publish_at_once_stays_in_the_index(tmp_path):
    """Each publisher looks for other records after writing the index, whoever writes it last."""
    address = (tmp_path / "hub").as_uri()
    files, others = open_address(address, tmp_path), open_address(address, tmp_path)
    mine, theirs = make_release(), make_release("vision-int8", b"q")
    for writer, (record, contents) in ((files, mine), (others, theirs)):
        _publish(writer, record, contents, dry_run=False)
    write = files.write

    def write_late(name, pieces):
        """Write an index that was made before another release existed."""
        files.write = write
        stale = {**read_index(files), "releases": [mine[0]], "targets": {}}
        write_index(others, [theirs[0]])
        write(name, [json.dumps(stale).encode()])

    files.write = write_late
    write_index(files, [mine[0]])
    assert {release["package"] for release in read_index(files)["releases"]} == {
        "vision",
        "vision-int8",
    }


def test_a_record_without_a_name_in_the_index_is_found(tmp_path):
    files = open_address((tmp_path / "hub").as_uri(), tmp_path)
    release, contents = make_release()
    _publish(files, release, contents, dry_run=False)  # and killed before the index
    files.write("other/0123456789ab/release.json", [b'{"path": "../../etc"}'])
    write_index(files, [])
    assert read_index(files)["releases"] == [release]


def test_the_best_release_of_a_target():
    def choose(*releases):
        return find_best(release for release, _ in releases)["android-arm64"]["vision"]

    old, new = make_release(), make_release(weight=b"n")
    assert choose(old, new) == new[0]["path"]
    assert choose(new, old) == old[0]["path"]  # an earlier build, published again
    small = make_release("small", b"", verdict="not judged")
    assert choose(small, old) == old[0]["path"]
    proven = make_release("proven", b"long", devices={"executorch": "passed", "pi5": "passed"})
    assert choose(old, proven) == proven[0]["path"]


def test_large_files_have_parts():
    content = bytes(PART) + b"end"
    file = describe_file("model.ptd", content)
    assert [(part["offset"], part["size"]) for part in file["parts"]] == [(0, PART), (PART, 3)]
    assert (file["kind"], file["size"]) == ("data", PART + 3)
    assert file["blake3"] == hash_bytes(content)
    assert "parts" not in describe_file("model.ptd", b"end")


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("models", "is not a URL"),
        ("hf2://org/model", "hf2:// is not a known scheme, such as file://, s3://"),
    ],
)
def test_addresses_that_nothing_reaches(tmp_path, address, line):
    with pytest.raises(PipelineError, match=line):
        open_address(address, tmp_path)


def test_an_index_that_is_not_ours(tmp_path):
    files = open_address((tmp_path / "hub").as_uri(), tmp_path)
    release, _ = make_release()
    for index in (
        {"format": 2},
        {"format": 1, "releases": [{**release, "path": "../../etc"}], "targets": {}},
        {"format": 1, "releases": [{**release, "files": []}], "targets": {}},
    ):
        files.write(INDEX, [json.dumps(index).encode()])
        with pytest.raises(
            PipelineError,
            match=r"packages\.json is not an index that this "
            "version",
        ):
            read_index(files)


def test_fetching_what_is_not_there(tmp_path, capsys):
    address = (tmp_path / "hub").as_uri()
    files = open_address(address, tmp_path)
    with pytest.raises(PipelineError, match=r"/hub: has no packages\.json with packages; check"):
        fetch_package(address, "ios", folder=tmp_path)
    publish(files, make_release(), make_release("speech", model="speech"))
    for words, line in [
        (("ios",), r"packages\.json has no target 'ios'"),
        (("android-arm64",), "has several models for android-arm64; name one of speech, vision"),
        (("android-arm64", "visio"), "has no model 'visio' for android-arm64; did you mean"),
    ]:
        with pytest.raises(PipelineError, match=line):
            fetch_package(address, *words, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"hub"}
    (tmp_path / "file").touch()
    assert fetch.run([address, "android-arm64", "vision", str(tmp_path / "file")], tmp_path) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fetch: {tmp_path}/file/") and ": Not a directory" in line


def test_a_damaged_file_is_not_kept(tmp_path):
    address = (tmp_path / "hub").as_uri()
    files = open_address(address, tmp_path)
    release, contents = make_release()
    publish(files, (release, contents))
    for size in (1000, 999, 1001):
        files.write(f"{release['path']}/vision.pte", [bytes(size)])
        with pytest.raises(PipelineError, match=r"vision\.pte does not match packages\.json"):
            fetch_package(address, "android-arm64", "vision", tmp_path / "assets")
    assert not list((tmp_path / "assets").rglob("*.pte"))
    with pytest.raises(PipelineError, match=r"has different content") as error:
        find_missing(files, {**release, "files": [{**release["files"][0], "size": 1}]})
    assert release["path"] in str(error.value)


@pytest.mark.parametrize(
    ("verdict", "allowed", "line"),
    [
        ("failed", ("not-judged",), r"is not published: failed; see build/vision/report\.md"),
        ("not judged", ("not-run",), r"not judged; see .*; `--allow not-judged` publishes it"),
        ("not run", (), r"not run; see .*; `--allow not-run` publishes it"),
        ("not judged", ("not-judged",), ""),
        ("passed", (), ""),
    ],
)
def test_a_verdict_that_is_not_accepted(monkeypatch, verdict, allowed, line):
    current = lambda plan, package: Status("up-to-date", "unchanged")  # noqa: E731
    monkeypatch.setattr(release_module, "link_status", current)
    monkeypatch.setattr(release_module, "validate_status", current)
    state = {"validate": {"verdict": verdict, "allow": allowed}}
    workspace = SimpleNamespace(state=lambda package: state, allow=())
    plan = SimpleNamespace(check=lambda package: None, workspace=workspace)
    if line:
        with pytest.raises(PipelineError, match=line):
            release_module._check(plan, "vision")
    else:
        release_module._check(plan, "vision")


class ReadableFileSystem(MemoryFileSystem):
    """A file system that can be read, and that only others can write to."""

    protocol = "readable"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    def makedirs(self, path, exist_ok=False):
        raise PermissionError(f"AccessDenied: {path}")


fsspec.register_implementation("readable", ReadableFileSystem, clobber=True)


def test_an_address_that_refuses(tmp_path):
    files = open_address("readable://user:word@hub", tmp_path)
    with pytest.raises(PipelineError) as error:
        publish(files, make_release())
    line = str(error.value)
    assert line.startswith("readable://hub: vision/")
    assert "(0 of 4 files were sent) can't be written (PermissionError: AccessDenied: " in line
    assert line.endswith("; check the credentials and their permissions")


@pytest.mark.slow
def test_a_hub_that_is_not_reached(tmp_path):
    pytest.importorskip("huggingface_hub")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        lines = ["[tool.pte-pipeline]", 'remote = "hf://org/cache"', 'remote_trust = "unsigned"']
        lines.append(f'remote_options = {{endpoint = "{endpoint}"}}')
        (tmp_path / "pyproject.toml").write_text("\n".join(lines))
        files = open_address("hf://org/model", tmp_path)
        with pytest.raises(PipelineError, match=r"^hf://org/model.* can't be reached \("):
            publish(files, make_release())


def test_many_publish_at_once(tmp_path):
    """Whoever writes the index last, it contains all releases."""
    address = (tmp_path / "hub").as_uri()
    together = threading.Barrier(4)

    def publish_some(number):
        files = open_address(address, tmp_path)
        together.wait()
        for turn in range(3):
            publish(files, make_release(f"model-{number}", bytes([turn])))
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(publish_some, range(4)))
    index = read_index(open_address(address, tmp_path))
    assert len(index["releases"]) == len({r["path"] for r in index["releases"]}) == 12
    best = index["targets"]["android-arm64"]["vision"]
    assert best == make_release("model-0", bytes([2]))[0]["path"]
    for number in range(4):  # each publisher's releases keep their order
        paths = [r["path"] for r in index["releases"] if r["package"] == f"model-{number}"]
        made = [make_release(f"model-{number}", bytes([turn]))[0]["path"] for turn in range(3)]
        assert paths == made


def test_the_order_of_others_stays_while_an_index_is_renewed(tmp_path, monkeypatch):
    """Their releases would otherwise be found again in the order of their paths."""
    files, others = (open_address((tmp_path / "hub").as_uri(), tmp_path) for _ in range(2))
    releases = [make_release("vision", bytes([turn])) for turn in range(4)]
    releases.sort(key=lambda release: release[0]["path"], reverse=True)
    paths = [record["path"] for record, _ in releases]
    listed = files.names

    def list_names():
        names = [*listed()]
        while releases:
            publish(others, releases.pop(0))
        return names

    monkeypatch.setattr(files, "names", list_names)
    publish(files, make_release("speech"))
    index = read_index(others)
    assert [r["path"] for r in index["releases"] if r["package"] == "vision"] == paths


@pytest.mark.slow
def test_a_bucket_and_those_that_are_not_there(s3, tmp_path):
    def write_settings(endpoint):
        options = {**s3_options(endpoint)["client_kwargs"]}
        client = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
        table = f'{{key = "a", secret = "b", client_kwargs = {{{client}}}}}'
        lines = ["[tool.pte-pipeline]", f'remote = "{s3.url}"', 'remote_trust = "unsigned"']
        lines += ["remote_timeout = 5", f"remote_options = {table}"]
        (tmp_path / "pyproject.toml").write_text("\n".join(lines))

    write_settings(s3.options["client_kwargs"]["endpoint_url"])
    bucket = s3.url.removesuffix("/team/cache/")
    release, contents = make_release()
    files = open_address(f"{bucket}/models", tmp_path)
    publish(files, (release, contents))
    assert publish(files, (release, contents)) == [f"{release['path']}: already uploaded"]
    path = fetch_package(f"{bucket}/models", "android-arm64", folder=tmp_path, root=tmp_path)
    assert path.read_bytes() == contents["vision.pte"]

    none = open_address(f"{bucket}-none/models", tmp_path)
    with pytest.raises(PipelineError) as error:
        publish(none, (release, contents))
    line = f"{bucket}-none/models is not there (FileNotFoundError: The specified bucket does not "
    assert str(error.value).startswith(line)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        write_settings(f"http://127.0.0.1:{unused.getsockname()[1]}")
        lost = open_address(f"{bucket}/models", tmp_path)
        with pytest.raises(PipelineError, match=r"can't be reached \(.*; packages\.json has noth"):
            publish(lost, (release, contents))
