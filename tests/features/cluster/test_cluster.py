"""Builds on a real dask scheduler with two workers, and what happens when something is killed.

The workers share nothing with the driver but a remote on S3, and the key that signs all results in
it.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import fsspec
import pytest

from pipeline.store.digest import hash_bytes
from tests.features.backend_plugins.test_plugins import install
from tests.support.cluster import running_cluster
from tests.support.keys import write_keys
from tests.support.patches import python_path
from tests.support.processes import descendants, gone, has_open, wait_for
from tests.support.sites import s3_options

pytestmark = pytest.mark.slow


BUCKET = "cluster"


@pytest.fixture(scope="module")
def filesystem(endpoint):
    """Return the file system of the remote."""
    found = fsspec.filesystem("s3", **s3_options(endpoint), use_listings_cache=False)
    found.mkdir(BUCKET)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, endpoint, filesystem):
    folder = tmp_path_factory.mktemp("cluster")
    signing, _ = write_keys(folder / "keys")
    remote = {
        "PTE_PIPELINE_REMOTE": f"s3://{BUCKET}/cache",
        "PTE_PIPELINE_SIGNING_KEY": str(signing),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with running_cluster(folder, remote=remote) as cluster:
        yield cluster


def environment(bench, cluster):
    return {**bench.environment, **cluster.remote, "PTE_PIPELINE_EXECUTOR": cluster.address}


@pytest.fixture
def start(cluster):
    """Return a function that starts doit in a workspace; remaining processes are killed later."""
    started = []

    def start(bench, *arguments, **more):
        process = subprocess.Popen(
            bench.command(*arguments),
            cwd=bench.root,
            env={**environment(bench, cluster), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell that runs the tests in the background makes them ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def files_of(bench, package):
    """Return the files of a package without its reports, which contain times."""
    names = ("pair.pte", "manifest.json", "contents.json")
    return {name: bench.bytes_of(package, name) for name in names}


def test_a_package_is_built_and_proved_elsewhere_to_the_same_bytes(built, cluster, start):
    """The workers have neither its workspace nor its store."""
    before = files_of(built, "pair")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    process = start(built, "validate")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output + cluster.log()
    assert files_of(built, "pair") == before
    assert json.loads(built.bytes_of("pair", "report.json"))["ok"]
    assert "Traceback" not in output + cluster.log()
    log = built.root / "build" / ".logs" / "pair" / "validate-pair.log"
    assert log.exists()
    # Each action except the export names its worker's machine, and has a lane there.
    ended = [each for each in events(built) if each["event"] == "action-ended"]
    hosts = {each["kind"]: each["host"] for each in ended}
    here = os.uname().nodename
    assert hosts == {"export": "", "compile": here, "link": here, "validate": here}
    lanes = (built.root / "build" / "timeline.json").read_text().count("thread_name")
    assert lanes >= 2  # for the export here, and for the workers


def events(bench):
    lines = (bench.root / "build" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


NEEDY = """
import os
from pipeline.backends import Backend, Execution, Lowering, Options, Preprocessing
from pipeline.backends.host import Host, sdk


def make_partitioner(options):
    from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo

    print("with the SDK in", os.environ["ACME_SDK"], flush=True)
    return AddMulPartitionerDemo()


BACKEND = Backend(
    name="acme",
    backend_id="BackendWithCompilerDemo",
    summary="Acme's accelerator",
    options=Options,
    lowering=Lowering(make_partitioner=make_partitioner),
    execution=Execution(cannot_run=lambda: "needs a board of Acme's"),
    host=Host(requirements=(sdk("Acme's SDK", "ACME_SDK", "Acme"),)),
)
"""


def test_a_worker_without_what_a_backend_needs_takes_none_of_its_actions(
    built, cluster, start, tmp_path
):
    """Two of three workers lack it; the third one joins while the action waits."""
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", NEEDY)
    config = built.root / "partition_configs" / "pair.yaml"
    encode = "{partitioners: [acme], allow_none: true}"
    config.write_text(f"model: pair\nmethods: {{encode: {encode}, decode: omit}}\n")
    plugin = {"PYTHONPATH": python_path(tmp_path / "site")}
    process = start(built, "validate", **plugin, ACME_SDK=str(tmp_path))
    wait_for(lambda: any(each["event"] == "action-started" for each in events(built)))
    time.sleep(2)  # time enough for the others to take it
    assert not under_way(cluster, "encode")
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    worker = cluster.start_worker(2, {**plugin, "ACME_SDK": str(sdk)})
    output, _ = process.communicate(timeout=300)
    worker.kill()
    worker.wait()
    assert process.returncode == 0, output + cluster.log()
    log = built.root / "build" / ".logs" / "pair" / "compile-encode.log"
    assert f"with the SDK in {sdk}\n" in log.read_text()
    assert built.outcomes()["validate pair"] == "built"


SLOW = """
import os, signal, time
from torch.fx.passes.infra.pass_base import PassBase, PassResult

INPUTS = []  # the clock does not count


class Waits(PassBase):
    def __init__(self, seconds=0.0, dies=False, name=""):
        self.seconds, self.dies = seconds, dies

    def call(self, graph_module):
        time.sleep(self.seconds)
        if self.dies:
            os.kill(os.getppid(), signal.SIGKILL)  # the worker, of which this is a fork
            time.sleep(60)
        return PassResult(graph_module, False)
"""


@pytest.fixture
def slow(built, request):
    """A package with a method that is slow to lower, and one lowered as in no other test."""
    other = hash_bytes(request.node.name.encode())[:4]
    (built.root / "passes").mkdir()
    (built.root / "passes" / "slow.py").write_text(SLOW)
    config = built.root / "partition_configs" / "pair.yaml"
    config.write_text(
        "model: pair\nmethods:\n"
        "  encode: {partitioners: [], edge: {passes: ['slow:Waits': {seconds: 5.0}]}}\n"
        f"  decode: {{partitioners: [], edge: {{passes: ['slow:Waits': {{name: x{other}}}]}}}}\n"
    )
    return built


def under_way(cluster, method):
    """Return the processes that lower a method, keyed by the worker that they belong to."""
    found = {}
    for worker in cluster.workers:
        folder = cluster.folder / f"worker{cluster.workers.index(worker)}"
        logs = f"{folder}/**/action-*/build/.logs/*/compile-{method}.log"
        # Unlike Path.rglob, it bears that an action's folder disappears meanwhile.
        for log in glob.glob(logs, recursive=True):
            for pid in descendants(worker.pid):
                if has_open(pid, Path(log)):
                    found.setdefault(worker, []).append(pid)
    return found


def wait_until_under_way(cluster, method, but=()):
    """Return the worker that lowers a method, once ten polls in a row have seen it: a process left
    over from an earlier test ends within them."""
    looks = [set()] * 10

    def look():
        looks.append(set(under_way(cluster, method)) - set(but))
        return bool(set.intersection(*looks[-10:]))

    wait_for(look)
    return next(iter(set.intersection(*looks[-10:])))


def test_a_killed_worker_costs_its_own_action_alone(slow, cluster, start):
    """Kills the action's process first, and later dask's worker along with the process."""
    process = start(slow, "lower")
    worker = wait_until_under_way(cluster, "encode")
    os.kill(min(under_way(cluster, "encode")[worker]), signal.SIGKILL)
    wait_for(lambda: not under_way(cluster, "encode").get(worker))
    worker = wait_until_under_way(cluster, "encode")
    number = cluster.workers.index(worker)
    left = descendants(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    assert gone(left, 10)
    output, _ = process.communicate(timeout=120)
    worker.wait()
    cluster.workers[number] = cluster.start_worker(number)
    assert process.returncode == 0, output + cluster.log()
    # Its result is a hit if dask reran it because it had ended just as its worker was killed.
    assert slow.outcomes()["compile pair/encode"] in ("built", "hit")
    assert slow.outcomes()["link pair"] == slow.outcomes()["compile pair/decode"] == "built"


def test_one_that_ends_its_worker_each_time_fails_with_what_is_known(slow, cluster, start):
    slow.edit("partition_configs/pair.yaml", "seconds: 5.0", "dies: true")
    process = start(slow, "lower")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    (line,) = [each for each in output.splitlines() if each.startswith("compile:pair/encode ")]
    assert "failed in stage 'lower'" in line
    assert "its worker process died (SIGKILL(-9)), 3 times; it held " in line
    assert slow.outcomes()["compile pair/decode"] == "built"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_an_ended_driver_ends_what_runs_elsewhere_and_keeps_what_is_done(
    slow, cluster, filesystem, start, end
):
    slow.edit("partition_configs/pair.yaml", "seconds: 5.0", "seconds: 60.0")
    process = start(slow, "lower")
    wait_for(lambda: "built    compile pair/decode" in process.stdout.readline())
    worker = wait_until_under_way(cluster, "encode")
    processes = set(under_way(cluster, "encode")[worker])
    os.killpg(process.pid, end)
    assert process.wait(40) == (130 if end == signal.SIGINT else -end)  # 2 s, and what else runs
    assert gone(processes, 15)
    output = process.stdout.read()
    assert "Traceback" not in output, output
    blobs = filesystem.find(f"{BUCKET}/cache/blobs")
    assert blobs  # none of them half pushed
    assert all(
        hash_bytes(filesystem.cat_file(each)) == "".join(each.split("/")[-2:]) for each in blobs
    )
    if end == signal.SIGINT:
        assert slow.outcomes()["compile pair/decode"] == "built"
        assert slow.outcomes()["compile pair/encode"] == "not-run"


def test_a_lost_scheduler_ends_the_run_within_seconds(slow, cluster, start):
    """This test comes last, since it ends the cluster's scheduler."""
    slow.edit("partition_configs/pair.yaml", "seconds: 5.0", "seconds: 60.0")
    process = start(slow, "lower")
    worker = wait_until_under_way(cluster, "encode")
    processes = set(under_way(cluster, "encode")[worker])
    cluster.scheduler.kill()
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1, output
    # The other method may not have been handed over until then.
    told = (f"the scheduler {cluster.address} was lost", "no scheduler answers at ")
    assert any(words in output for words in told), output
    assert "Traceback" not in output, output
    assert gone(processes, 40)


def test_a_scheduler_that_is_not_there_is_one_line(slow):
    code = slow.process("lower", PTE_PIPELINE_EXECUTOR="dask://127.0.0.1:1")
    assert code == 1
    assert "no scheduler answers at " in slow.output and "Traceback" not in slow.output
