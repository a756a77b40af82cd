"""The bytes of a package are the same from every level of the cache."""

import json
import shutil
import zipfile

import pytest

from pipeline.store.store import Store
from pipeline.store.usage import read_usage

pytestmark = pytest.mark.slow

FILES = ("pair.pte", "manifest.json", "contents.json", "report.md")  # report.json holds times


def contents(bench):
    found = {name: bench.bytes_of("pair", name) for name in FILES}
    report, timed, _ = found["report.md"].partition(b"<summary>Latency")
    assert timed
    return found | {"report.md": report}


def forget(bench, *kinds):
    """Remove the results of these kinds of action, blobs that only they name, and `build/`."""
    kept = set()
    for path in (bench.store / "actions").rglob("*.json"):
        record = json.loads(path.read_bytes())
        if record["key"]["kind"] in kinds:
            path.unlink()
        else:
            kept.add(path.read_text())
    for path in (bench.store / "blobs").rglob("*"):
        name = path.parent.name + path.name
        if path.is_file() and not any(name in text for text in kept):
            path.unlink()
    shutil.rmtree(bench.root / "build")


def used(bench, before):
    """Return the hits and misses of each kind of action since `before`."""
    now = read_usage(Store(bench.store))
    none = type(next(iter(now.values())))()
    since = {
        kind: (now[kind].hits - old.hits, now[kind].misses - old.misses)
        for kind in now
        for old in [before.get(kind, none)]
    }
    return {kind: counts for kind, counts in since.items() if counts != (0, 0)}


LEVELS = {
    "nothing forgotten": ((), {"compile": (2, 0), "link": (1, 0), "validate": (1, 0)}),
    "link": (("link",), {"compile": (2, 0), "link": (0, 1), "validate": (1, 0)}),
    "partitions only": (
        ("link", "compile", "validate"),
        {"compile": (0, 2), "preprocess": (1, 0), "link": (0, 1), "validate": (0, 1)},
    ),
    "all but the export": (
        ("link", "compile", "validate", "preprocess"),
        {"compile": (0, 2), "preprocess": (0, 1), "link": (0, 1), "validate": (0, 1)},
    ),
}


# The number of workers matters most for the case with the most to do.
CASES = [pytest.param(*level, "1", id=name) for name, level in LEVELS.items()]
CASES += [pytest.param(*LEVELS["all but the export"], "3", id="all but the export, three workers")]


@pytest.mark.parametrize(("forgotten", "counts", "jobs"), CASES)
def test_each_level_gives_the_bytes_of_a_cold_build(built, forgotten, counts, jobs):
    cold = contents(built)
    before = read_usage(Store(built.store))
    forget(built, *forgotten)
    doit = built.doit if jobs == "1" else built.process  # a fork has no workers
    assert doit(PTE_PIPELINE_JOBS=jobs) == 0, built.output
    assert contents(built) == cold
    assert used(built, before) == counts


def test_exported_again_without_a_change_compiles_nothing(built):
    cold = contents(built)
    before = read_usage(Store(built.store))
    built.edit("models/pair.py", '"""Two methods', '"""Again, two methods')
    assert built.doit() == 0, built.output
    assert contents(built) == cold
    # The report names lines of that file.
    assert used(built, before) == {"export": (0, 1), "validate": (0, 1)}


def _saved_again(path):
    """Save the same programs in other bytes: value names, member order, stack traces."""
    with zipfile.ZipFile(path) as old:
        members = [(name, old.read(name)) for name in old.namelist()]
    first = [each for each in members if "/models/" not in each[0]]
    with zipfile.ZipFile(path, "w") as new:
        for name, data in [*first, *(each for each in members if each not in first)]:
            if "/models/" in name:
                program = json.loads(data)
                for node in program["graph_module"]["graph"]["nodes"]:
                    node["metadata"]["stack_trace"] = "elsewhere"
                data = json.dumps(program, indent=1).encode()
            new.writestr(name, data)


def test_archive_in_other_bytes_is_known_by_its_programs(bench):
    workspace = bench("archives")
    workspace.settle()
    assert workspace.doit("lower:one") == 0, workspace.output
    before = read_usage(Store(workspace.store))
    cold = workspace.bytes_of("one", "one.pte")
    _saved_again(workspace.root / "models" / "one.pt2")
    assert workspace.doit("lower:one") == 0, workspace.output
    assert used(workspace, before) == {"programs": (0, 1)}
    assert workspace.outcomes()["link one"] == "up-to-date"
    shutil.rmtree(workspace.root / "build")
    before = read_usage(Store(workspace.store))
    assert workspace.doit("lower:one") == 0, workspace.output
    assert used(workspace, before)["programs"] == (1, 0)  # the archive, keyed by its bytes now
    assert workspace.bytes_of("one", "one.pte") == cold


def test_same_partition_in_two_packages_is_preprocessed_once(built):
    """Another package of the model has one more quantity, so its compile action differs."""
    before = read_usage(Store(built.store))
    config = (built.root / "partition_configs" / "pair.yaml").read_text()
    (built.root / "partition_configs" / "more.yaml").write_text(
        config + "emit: {external_constants: true}\n"
    )
    assert built.doit("lower:more") == 0, built.output
    counts = used(built, before)
    assert counts["compile"] == (0, 2)
    assert counts["preprocess"] == (1, 0)
