"""A fresh checkout that takes everything from a distant remote.

The remote is S3 on loopback, behind a proxy that delays each packet by half a round trip. The
server closes each connection, so every request pays for a new one, which real S3 would save.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, Run, best, rounded
from benchmarks.shipped import build
from benchmarks.workspaces import Checkout, Sizes
from pipeline.features.remote.remote import Remote, RemoteSettings
from pipeline.store.digest import Digest
from pipeline.store.store import Store

SECONDS = {30: 4.0, 100: 6.0}  # targets, keyed by round trip in milliseconds
_BUCKET = "benchmarks"
_SIGNED_IN = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_REGION = {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_EC2_METADATA_DISABLED": "true"}


def remote(folder: Path, sizes: Sizes) -> Result:
    """Measure a checkout with neither `build/` nor a store.

    It runs `doit plan` first, which must fetch no blob. The build then starts with another empty
    store.
    """
    shipped = build(folder.parent / "shipped", sizes).exporters
    runs: dict[int, list[Run]] = {}
    plans: dict[int, Run] = {}
    blobs = 0
    with _s3_server(folder) as port:
        _fill(shipped, f"http://127.0.0.1:{port}")
        for milliseconds in SECONDS:
            with _delayed(port, milliseconds / 1000) as far:
                looked = _checkout(shipped, folder / f"plan{milliseconds}", far)
                plans[milliseconds] = looked.doit("plan")
                blobs += len(list((looked.store / "blobs").glob("*/*")))
                copies = [
                    _checkout(shipped, folder / f"{milliseconds}-{turn}", far)
                    for turn in range(sizes.repeats)
                ]
                runs[milliseconds] = [copy.doit("lower") for copy in copies]
            if any(copy.files() != shipped.files() for copy in copies):
                raise BenchmarkError("a fresh checkout got other files")
    ratio = max(best(runs[each]) / limit for each, limit in SECONDS.items())
    return Result(
        case="remote",
        ratio=ratio,
        limit=1.0,
        ok=ratio <= 1.0 and not blobs,
        measured=f"{_told(best(each) for each in runs.values())}; {blobs} blobs for a plan",
        to_reach=f"<= {_told(SECONDS.values())}; 0 blobs for a plan",
        note=f"{len(sizes.shipped)} packages; `doit plan` in "
        + _told(each.wall for each in plans.values()),
        figures={f"{n}_ms_seconds": rounded([r.wall for r in each]) for n, each in runs.items()},
    )


def _told(seconds: Iterable[float]) -> str:
    pairs = zip(SECONDS, seconds, strict=True)
    return ", ".join(f"{each:.1f} s at {milliseconds} ms" for milliseconds, each in pairs)


def _checkout(shipped: Checkout, root: Path, port: int) -> Checkout:
    """Make a fresh checkout with an empty store, and its remote at a port."""
    fresh = replace(shipped.fresh(root), store=root / "empty-store")
    fresh.environment.update(_SIGNED_IN | _REGION)
    fresh.environment.update(
        PTE_PIPELINE_REMOTE=f"s3://{_BUCKET}/cache",
        PTE_PIPELINE_REMOTE_TRUST="unsigned",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
    )
    return fresh


def _fill(shipped: Checkout, endpoint: str) -> None:
    """Push everything in a store."""
    import fsspec

    options = {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": _REGION["AWS_DEFAULT_REGION"]},
    }
    fsspec.filesystem("s3", **options).mkdir(_BUCKET)
    there = Remote(RemoteSettings(f"s3://{_BUCKET}/cache", options=options, unsigned=True))
    store = Store(shipped.store)
    for path in store.root.glob("blobs/*/*"):
        there.push_blob(Digest(path.parent.name + path.name), path)
    for path in store.root.glob("actions/*/*.json"):
        action = Digest(path.parent.name + path.stem)
        if (entry := store.get(action)) is not None:
            there.push_result(action, entry.to_json())
    if there.problem or there.counts.errors:
        raise BenchmarkError(f"the remote was not filled: {there.problem}")


@contextmanager
def _s3_server(folder: Path) -> Iterator[int]:
    """Run an S3 server from the extra `test` in another process."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        else:
            raise BenchmarkError("the S3 server does not start")
        yield port
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def _delayed(port: int, round_trip: float) -> Iterator[int]:
    """Yield a port that forwards to another one with a delay of `round_trip` seconds."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(connect, "127.0.0.1", 0)

    async def connect(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(round_trip)  # the handshake
        with suppress(OSError):
            far, there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pass_on(near, there), _pass_on(far, back))

    async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Forward packets, each with a separate delay, so that many can be in flight at once."""
        ends = [loop.create_task(asyncio.sleep(0))]

        async def deliver(data: bytes, earlier: asyncio.Task[None]) -> None:
            await asyncio.sleep(round_trip / 2)
            await earlier
            with suppress(OSError):
                if data:
                    to.write(data)
                    await to.drain()
                else:
                    to.close()

        with suppress(OSError):
            while data := await source.read(1 << 18):
                ends.append(loop.create_task(deliver(data, ends[-1])))
        await loop.create_task(deliver(b"", ends[-1]))

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
