"""Stack traces look at the files of libraries once; any other file that they quote is an input."""

import collections
import linecache
import shutil
import traceback

import pytest

from pipeline.features.exporters import quoted_lines
from pipeline.features.exporters.export import export
from pipeline.features.exporters.quoted_lines import keep_quoted_lines
from pipeline.features.tracing.supervise import Supervisor
from pipeline.features.tracing.tracer import Tracer, has_kernel_view
from pipeline.plan.plan import Plan
from pipeline.plan.status import export_status
from pipeline.run.isolated import run_isolated
from pipeline.run.stages import Stages
from pipeline.store.workspace import open_workspace
from tests.support.bench import REPOSITORY, bench_of

needs_kernel = pytest.mark.skipif(not has_kernel_view(), reason="needs the kernel's view")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return a folder of libraries and one of a workspace, each with a module to quote."""
    for name in ("installed", "workspace"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "quoting.py").write_text("def quote(): return trace()  # first\n")
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    monkeypatch.setattr(quoted_lines, "environment_folders", lambda: (str(tmp_path / "installed"),))
    keep_quoted_lines()
    return tmp_path


def quote(path):
    """Return the last line of a stack trace in a module, which runs as it was at first."""
    names = {"trace": traceback.format_stack}
    exec(compile("def quote(): return trace()", path, "exec"), names)
    return names["quote"]()[-1].rpartition("# ")[2].strip()


@pytest.mark.parametrize(("folder", "then"), [("installed", "first"), ("workspace", "second")])
def test_only_changed_lines_of_a_workspace_are_quoted_anew(folders, folder, then):
    path = folders / folder / "quoting.py"
    assert quote(path) == "first"
    path.write_text("def quote(): return trace()  # second\n")
    assert quote(path) == then


def test_other_threads_may_quote_lines_meanwhile(monkeypatch):
    cache = {"one.py": (1, 0.0, ["1"], "one.py")}
    hold = quoted_lines.FolderSet.hold

    def hold_late(self, name):
        cache[f"{name}+"] = cache["one.py"]
        return hold(self, name)

    monkeypatch.setattr(linecache, "cache", cache)
    monkeypatch.setattr(quoted_lines.FolderSet, "hold", hold_late)
    keep_quoted_lines()
    assert "one.py+" in cache and "one.py" in linecache.cache


class Looks(Tracer):
    """Counts how often each path is looked at."""

    def __init__(self):
        super().__init__(lambda path: True, lambda kind, path: "")
        self._looks = collections.Counter()

    def look(self, path, follow=True):
        self._looks[path] += 1
        super().look(path, follow)


@needs_kernel
def test_quoted_files_are_seen(folders):
    """Further looks at an installed file would compare it with lines that are running already."""
    paths = [str(folders / name / "quoting.py") for name in ("installed", "workspace")]
    watch = Looks()
    run_isolated(lambda: [quote(path) for path in paths for _ in range(9)], watch)
    assert {("file", path) for path in paths} <= watch.seen.keys()
    installed, workspace = (watch._looks[path] for path in paths)
    assert installed == 2  # for its size, and to open it
    assert workspace > 9


def test_text_entries_are_kept_as_they_are(folders):
    entry = 1, None, ["x\n"], "<string>"
    linecache.cache["<string>"] = entry
    linecache.cache["lazy"] = (lambda: "x",)
    assert linecache.cache["<string>"] == entry and len(linecache.cache["lazy"]) == 1
    linecache.checkcache()
    assert linecache.getlines("<string>") == ["x\n"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    bench = bench_of("pair", tmp_path)
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(bench.store))
    monkeypatch.chdir(bench.root)
    shutil.copy(REPOSITORY / "models" / "add_sub.py", bench.root / "models" / "pair.py")
    return open_workspace(bench.root)


@needs_kernel
def test_exporter_waits_for_few_system_calls(workspace, monkeypatch):
    """Each seed of a reference formats three stack traces, of eight files each: 600 calls.

    How many of these files another test has read varies.
    """
    calls, see = [], Supervisor.see

    def count(supervisor, call):
        calls.append(call.name)
        see(supervisor, call)

    monkeypatch.setattr(Supervisor, "see", count)
    export(Plan(workspace).models.export("pair"), workspace, Stages())
    assert 0 < len(calls) < 150


def test_quoted_module_of_the_workspace_is_an_input(workspace):
    path, quoted = workspace.models / "pair.py", workspace.models / "quoted.py"
    quoted.write_text("text\n")
    path.write_text(f"import linecache\nlinecache.getlines({str(quoted)!r})\n{path.read_text()}")
    path.write_text(path.read_text().replace("from __future__ import annotations\n", ""))
    export(Plan(workspace).models.export("pair"), workspace, Stages())
    assert export_status(Plan(workspace), "pair").current
    quoted.write_text("other text\n")
    assert not export_status(Plan(workspace), "pair").current
