"""Publishing to failing addresses of every scheme: one-line errors, and nothing half published."""

import json
import re
import secrets
import socket
from dataclasses import replace

import pytest

from pipeline.features.publish import fetch
from pipeline.features.publish.index import read_index
from pipeline.features.publish.upload import INDEX, explaining
from pipeline.features.publish.verb import publish_releases
from pipeline.features.remote.files import RemoteFiles
from pipeline.store.errors import PipelineError
from tests.features.publish.test_publish import make_release
from tests.support.weak_link import at_port, weak_link

TIMEOUT = 1.5  # seconds: libraries that retry do so until then
# Writes between two cuts, for servers where a file takes several: folders and moves. Otherwise the
# fifth write is the record of a release, and the sixth its index.
WRITES = {"webdav": 9}
RARE = (pytest.mark.slow, pytest.mark.release)
SCHEMES = [
    pytest.param("http", marks=pytest.mark.slow),
    *(pytest.param(name, marks=RARE) for name in ("azure", "gcs", "hf", "s3", "webdav")),
]


@pytest.fixture(params=SCHEMES)
def site(request):
    return request.getfixturevalue(request.param)


def open_site(site, timeout=TIMEOUT):
    return RemoteFiles(site.url, site.options, timeout)


def publish(site, *releases):
    return list(publish_releases(open_site(site), releases, dry_run=False))


def check_index(site):
    """Check that all files of all releases in an index exist."""
    names = site.names()
    if INDEX not in names:
        return []
    releases = json.loads(site.read(INDEX))["releases"]
    for release in releases:
        for file in release["files"]:
            content = site.read(f"{release['path']}/{file['name']}")
            assert len(content) == file["size"]
    return releases


def fetch_from(site, folder, monkeypatch):
    monkeypatch.setattr(fetch, "open_address", lambda address, root: open_site(site))
    return fetch.fetch_package(site.url, "android-arm64", "vision", folder)


def test_an_upload_that_is_cut_goes_on(site, tmp_path, monkeypatch):
    release, contents = make_release()
    scheme, cuts = site.url.partition("+")[0], 0
    for fault in ("cut before", "cut after"):
        for writes in range(0, 60, WRITES.get(scheme, 5)):
            place = f"{site.url.rstrip('/')}-{secrets.token_hex(4)}"
            folder = site.folder and f"{site.folder}-{place[-8:]}"
            fresh = replace(site, url=place, folder=folder)
            with weak_link(fresh, writes, fault) as cut:
                try:
                    publish(cut, (release, contents))
                except PipelineError as error:
                    cuts += 1
                    (line,) = error.lines
                    assert "\n" not in line and line.startswith(RemoteFiles(cut.url, {}, 1).shown)
                    assert line.endswith("; run the same command again to continue")
                else:
                    break
            before = check_index(fresh)
            assert before in ([], [release])
            assert before == [] or fault == "cut after"
            publish(fresh, (release, contents))
            assert check_index(fresh) == [release]
    assert cuts >= 4
    pte = fetch_from(fresh, tmp_path / "assets", monkeypatch)
    assert pte.read_bytes() == contents["vision.pte"]
    assert not any(name.startswith("tmp/") for name in fresh.names())


def test_a_server_that_refuses(site):
    with weak_link(site, 0, 403) as refusing, pytest.raises(PipelineError) as caught:
        publish(refusing, make_release())
    (line,) = caught.value.lines
    assert " can't be written (" in line
    assert line.endswith("; check the credentials and their permissions")
    assert site.names() == set()


def test_a_server_that_is_not_reached(site, tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        lost = at_port(site, unused.getsockname()[1])
        with pytest.raises(PipelineError) as caught:
            publish(lost, make_release())
        with pytest.raises(PipelineError, match=r"^[^\n]*: can't be read \([^\n]*\)$"):
            fetch_from(lost, tmp_path / "assets", monkeypatch)
    (line,) = caught.value.lines
    assert " can't be reached (" in line and f"; {INDEX} has nothing new; run the same" in line


def test_a_bucket_that_is_not_there(site):
    if site.folder:
        pytest.skip("a folder, which an upload makes")
    none = re.sub(r"/team.*", "-none/team", site.url)
    with pytest.raises(PipelineError) as caught:
        publish(replace(site, url=none), make_release())
    (line,) = caught.value.lines
    assert line.startswith(f"{none} is not there (")
    assert line.endswith("); create the bucket or repository first")


def test_another_content_is_neither_overwritten_nor_fetched(site, tmp_path, monkeypatch):
    release, contents = make_release()
    publish(site, (release, contents))
    name = f"{release['path']}/vision.pte"
    site.write(name, b"x" * len(contents["vision.pte"]))
    with pytest.raises(PipelineError, match=r"vision\.pte does not match packages\.json"):
        fetch_from(site, tmp_path / "assets", monkeypatch)
    assert not list((tmp_path / "assets").rglob("*.pte"))
    site.write(name, b"x")
    site.remove(INDEX)
    with pytest.raises(PipelineError, match=rf"{name} has different content, which is never"):
        publish(site, (release, contents))
    assert site.read(name) == b"x"
    with explaining(open_site(site)):
        assert read_index(open_site(site))["releases"] == []
