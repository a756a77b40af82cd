"""Fixtures: workspaces for tests to build in. Larger builds are made only once."""

from __future__ import annotations

import gc
import secrets
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests.support.bench import Bench, bench_of
from tests.support.error_records import find_expected, is_like, recorded_errors
from tests.support.quick_torch import make_torch_quick


def pytest_configure():
    # How long an example takes depends on the machine.
    settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any")


# The slowest files, longest first. They start first, so that no processor ends up idle while
# another one still has such a file to run.
LONGEST = (
    "packages", "mutations", "deletion", "cluster", "blocks_run", "upgrade", "kills", "prover",
    "driver", "quantize", "upstream", "apple", "openvino", "arm", "damage", "tutorial", "vulkan",
    "operators", "exporter_inputs", "faults", "add_sub", "key", "link", "calibration", "plugins",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish():
    """Keep the garbage collector away from what has been imported.

    Otherwise it scans these 400,000 objects over and over while programs are lowered.
    """
    if "torch" in sys.modules:
        make_torch_quick()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Check that a test that errors.toml names provokes its messages, so that quotes are real."""
    messages = find_expected(item.nodeid)
    if not messages:
        return (yield)
    with recorded_errors() as texts:
        outcome = yield
    missing = [text for text in messages if not any(is_like(given, text) for given in texts)]
    assert missing == [], f"{item.nodeid} no longer provokes what errors.toml quotes"
    return outcome


@pytest.fixture
def bench(tmp_path):
    """Return a function that makes a bench of a sample workspace."""
    return lambda sample: bench_of(sample, tmp_path)


@pytest.fixture(scope="session")
def endpoint():
    """Yield the address of an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint):
    import fsspec

    from tests.support.sites import Site, s3_options

    bucket = f"bucket-{secrets.token_hex(4)}"
    options = s3_options(endpoint)
    fsspec.filesystem("s3", **options).mkdir(bucket)
    return Site(f"s3://{bucket}/team/cache/", options)


@pytest.fixture
def folder(tmp_path):
    from tests.support.sites import Site

    return Site((tmp_path / "remote").as_uri())


@pytest.fixture
def gcs(monkeypatch):
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # read on import
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    from tests.support.sites import serve_gcs

    with serve_gcs(f"bucket-{secrets.token_hex(4)}") as site:
        yield site


@pytest.fixture(scope="session")
def _azure():
    pytest.importorskip("adlfs")
    if shutil.which("azurite-blob") is None:
        pytest.skip("no azurite-blob on PATH; `npm install azurite` brings it")
    from tests.support.sites import serve_azure

    with serve_azure("container") as site:
        yield site


@pytest.fixture
def azure(_azure):
    return replace(_azure, url=f"{_azure.url}-{secrets.token_hex(4)}")


@pytest.fixture
def hf(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # Xet needs another server
    from tests.support.hub_api import serve_hub

    with serve_hub() as site:
        yield site


@pytest.fixture
def http(tmp_path):
    from tests.support.sites import serve_put

    (tmp_path / "served").mkdir()
    with serve_put(tmp_path / "served") as site:
        yield site


@pytest.fixture
def webdav(tmp_path):
    pytest.importorskip("wsgidav")
    from tests.support.sites import serve_webdav

    (tmp_path / "served").mkdir()
    with serve_webdav(tmp_path / "served") as site:
        yield site


# Each run of the slow tests has a small test of them, in tests/features/remote/test_http.py.
_RARE = (pytest.mark.slow, pytest.mark.release)
RARE_SITES = [pytest.param(name, marks=_RARE) for name in ("azure", "gcs", "hf", "http", "webdav")]


@pytest.fixture(params=["folder", "s3", *RARE_SITES])
def site(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def _built(tmp_path_factory, worker_id):
    """The sample `pair` after its first run, made once for all pytest processes."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    bench = Bench(shared / "built" / "pair")
    printed = shared / "built" / "output.txt"
    with FileLock(shared / "built.lock"):
        if not printed.exists():
            bench_of("pair", bench.root.parent)
            assert bench.doit() == 0, bench.output
            printed.write_text(bench.output)
    return Bench(bench.root, printed.read_text())


@pytest.fixture
def built(_built, tmp_path):
    """A copy of the sample `pair` after its first run, including its store."""
    return Bench(Path(shutil.copytree(_built.root, tmp_path / "pair")), _built.output)
