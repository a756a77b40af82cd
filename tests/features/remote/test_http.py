"""Remotes over plain HTTP with PUT, and over WebDAV. `test_remote.py` tests everything else about
them, and about S3, in `pytest -m release`."""

import io
from http.server import SimpleHTTPRequestHandler

import pytest

from pipeline.features.remote.files import RemoteFiles
from pipeline.store.errors import PipelineError
from tests.features.remote.test_remote import ACTION, BLOB, CONTENT, RECORD
from tests.support.sites import serve_put


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and answers 501 to PUT."""

    def log_message(self, *arguments):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "webdav"])
def test_what_is_pushed_is_fetched(kind, request, tmp_path):
    site = request.getfixturevalue(kind)
    (tmp_path / "blob").write_bytes(CONTENT)
    writer, reader = site.remote(), site.remote()
    assert reader.fetch_result(ACTION) is None and reader.counts.misses == 1
    writer.push_blob(BLOB, tmp_path / "blob")
    writer.push_result(ACTION, RECORD)
    assert not writer.problem and writer.counts.pushed == 2
    later = site.remote()
    file = io.BytesIO()
    assert later.fetch_blob(BLOB, file) and file.getvalue() == CONTENT
    assert later.fetch_result(ACTION) == RECORD
    assert not any(name.startswith("tmp/") for name in site.names())


@pytest.mark.slow
def test_a_server_without_put_is_read_and_not_written(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "blob").write_bytes(CONTENT)
    with serve_put(tmp_path / "served", QuietHandler) as site:
        site.write(f"blobs/{BLOB[:2]}/{BLOB[2:]}", CONTENT)
        remote = site.remote()
        remote.push_result(ACTION, RECORD)
        assert ": cannot be written: ClientResponseError: 501" in remote.problem
        remote.push_result(ACTION, RECORD)
        assert remote.counts.errors == 1  # it wasn't queried again
        assert remote.fetch_blob(BLOB, io.BytesIO())


def test_an_address_says_what_it_needs(monkeypatch):
    import fsspec

    def find(protocol):
        raise ImportError(f"Install {protocol}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", find)
    needs = {"webdav+https": "webdav", "gs": "gcs", "abfs": "azure", "hf": "hub", "https": "http"}
    for protocol, extra in needs.items():
        files = RemoteFiles(f"{protocol}://user:secret@host/folder", {}, 1)
        with pytest.raises(PipelineError) as caught:
            files.check()
        assert f"needs pip install 'pte-pipeline[{extra}]'" in str(caught.value)
        assert "secret" not in str(caught.value)
