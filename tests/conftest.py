"""Workspaces that tests build in. They are real, and the larger builds are made once."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLES = Path(__file__).resolve().parent / "samples"


@dataclass
class Bench:
    """A workspace in a folder of the test's own, with a store of its own."""

    root: Path
    output: str = ""

    @property
    def store(self) -> Path:
        return self.root / ".store"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PTE_PIPELINE_STORE": str(self.store), "PTE_PIPELINE_JOBS": "2"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "doit", *arguments]

    def doit(self, *arguments: str, timeout: float = 300, **environment: str) -> int:
        """Runs doit as a user does, in a process; its output is kept in `output`."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        self.output = done.stdout
        return done.returncode

    def actions(self) -> list[dict[str, Any]]:
        return json.loads((self.root / "build" / "run.json").read_text())["actions"]

    def outcomes(self) -> dict[str, str]:
        """`kind package/method` to outcome, of the last run."""
        return {
            " ".join(
                [a["kind"], "/".join(n for n in (a["package"], a["method"]) if n) or a["model"]]
            ): a["outcome"]
            for a in self.actions()
        }

    def bytes_of(self, package: str, name: str) -> bytes:
        return (self.root / "build" / package / name).read_bytes()

    def snapshot(self) -> dict[Path, tuple[int, int]]:
        """Size and time of all files; in the store, the time is that of the last use."""
        return {
            path: (path.stat().st_size, path.is_relative_to(self.store) or path.stat().st_mtime_ns)
            for path in self.root.rglob("*")
        }

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def bench_of(sample: str, folder: Path) -> Bench:
    return Bench(Path(shutil.copytree(SAMPLES / sample, folder / sample)))


@pytest.fixture
def bench(tmp_path):
    """Makes a bench of a sample workspace."""
    return lambda sample: bench_of(sample, tmp_path)


@pytest.fixture(scope="session")
def endpoint():
    """The address of an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint):
    import fsspec
    from sites import Site, s3_options

    bucket = f"bucket-{secrets.token_hex(4)}"
    options = s3_options(endpoint)
    fsspec.filesystem("s3", **options).mkdir(bucket)
    return Site(f"s3://{bucket}/team/cache/", options)


@pytest.fixture
def folder(tmp_path):
    from sites import Site

    return Site((tmp_path / "remote").as_uri())


@pytest.fixture(params=["folder", "s3"])
def site(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def _built(tmp_path_factory):
    bench = bench_of("pair", tmp_path_factory.mktemp("built"))
    assert bench.doit() == 0, bench.output
    return bench


@pytest.fixture
def built(_built, tmp_path):
    """A copy of the sample `pair` as a first run left it, its store included."""
    return Bench(Path(shutil.copytree(_built.root, tmp_path / "pair")), _built.output)
