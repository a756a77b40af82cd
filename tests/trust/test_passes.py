"""Which passes a config may name: attacks through import paths, and passes offered on purpose."""

import os
import sys

import pytest

from pipeline.config.edge import PassSpec
from pipeline.features.passes.finding import remedy, source_files
from pipeline.features.passes.loading import load_passes
from pipeline.store.errors import PipelineError
from tests.support.configs import read_configs

FUSIONS = """
import os
import subprocess
from os import system
from subprocess import Popen, run as invoke

import deeper.inner
from _private import Hidden

class Fuse:
    def __init__(self, bits=8):
        self.bits = bits
    def __call__(self, graph_module):
        return None

def nothing(graph_module):
    return None

value = 3
made = Fuse()
"""
# Functions that run code or return it, and that a config could name in the past.
ATTACKS = [
    "subprocess:Popen",
    "os:system",
    "posix:system",
    "builtins:exec",
    "builtins:eval",
    "runpy:run_path",
    "importlib:import_module",
    "pickle:loads",
    "torch:load",
    "ctypes:CDLL",
    "webbrowser:open",
    "shutil:rmtree",
    "timeit:timeit",
    "pydoc:locate",
    "pipeline.store.files:write_atomically",
    "pytest:main",
    "models.pair:export_methods",
    "dodo:task_lower",
    "fusions:Popen",
    "fusions:system",
    "fusions:invoke",
    "fusions:os",
    "fusions:subprocess",
    "fusions:deeper",
    "fusions:Hidden",
    "fusions:value",
    "fusions:made",
    "fusions:Missing",
    "json:dumps",
    "deeper.inner:getoutput",
    "deeper:inner",
]
# Strings that are no references at all.
NO_NAMES = [
    "fusions:subprocess.Popen",
    "fusions:os.system",
    "fusions:__builtins__",
    "fusions:_hidden",
    "_private:Hidden",
    "__main__:x",
    "../fusions:Fuse",
    "..fusions:Fuse",
    ".fusions:Fuse",
    "/tmp/fusions:Fuse",
    "fusions/../x:Fuse",
    "fusions.:Fuse",
    "fusions:Fuse\n",
    "fusions:Fuse:x",
    "fusions :Fuse",
    "fu\u017fions:Fuse",
    "fusions:Fuse()",
    "fusions:Fuse;os",
    "fusions\0:Fuse",
    "fusions",
    ":Fuse",
    "",
]


@pytest.fixture
def root(tmp_path):
    """A workspace whose passes import many modules for internal use."""
    (tmp_path / "passes" / "deeper").mkdir(parents=True)
    (tmp_path / "passes" / "fusions.py").write_text(FUSIONS)
    (tmp_path / "passes" / "_private.py").write_text("class Hidden:\n    pass\n")
    (tmp_path / "passes" / "json.py").write_text("def loads(graph_module):\n    pass\n")
    inner = "from subprocess import getoutput\n__all__ = ['Deep', 'deepest']\n"
    inner += "class Deep:\n    def __call__(self, x): return x\ndeepest = Deep()\n"
    (tmp_path / "passes" / "deeper" / "inner.py").write_text(inner)
    return tmp_path


@pytest.fixture
def watched(monkeypatch):
    """Record what runs or is removed during an attack; nothing of it takes effect."""
    happened = []
    monkeypatch.setattr(os, "system", lambda *a, **k: happened.append("system"))
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: happened.append("Popen"))
    monkeypatch.setattr("shutil.rmtree", lambda *a, **k: happened.append("rmtree"))
    return happened


@pytest.mark.parametrize("reference", ATTACKS)
def test_nothing_else_that_is_importable_is_a_pass(root, watched, reference):
    before = set(sys.modules)
    with pytest.raises(PipelineError) as caught:
        load_passes([PassSpec(reference=reference, options={"args": "id"})], root)
    assert "\n" not in str(caught.value) and reference in str(caught.value)
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert new <= {"fusions", "deeper", "_private"}
    assert not watched


@pytest.mark.parametrize(
    "reference", [r for r in ATTACKS if not r.startswith(("fus", "json", "d"))]
)
def test_a_plan_imports_nothing_to_refuse_a_pass(root, reference):
    assert source_files(reference, root) == {}


@pytest.mark.parametrize("reference", NO_NAMES)
def test_what_is_no_name_is_refused_when_parsed(tmp_path, reference):
    quoted = '"' + "".join(f"\\u{ord(c):04x}" for c in reference) + '"'
    text = "model: m\nmethods: {f: {partitioners: [], edge: {passes: [%s]}}}\n"
    (tmp_path / "p.yaml").write_text(text % quoted)
    found = read_configs(tmp_path)
    if "\0" not in reference:
        (problem,) = found.problems["p"]
        assert "must be module:name" in str(problem) and "\n" not in str(problem)
    assert not found.configs


@pytest.mark.parametrize("reference", ["fusions:Fuse", "fusions:nothing", "deeper.inner:Deep"])
def test_what_the_folder_defines_is_a_pass(root, reference):
    assert all(map(callable, load_passes([PassSpec(reference=reference)], root)))
    assert "passes/fusions.py" in source_files(reference, root)


def test_what_all_lists_is_offered_wherever_it_comes_from(root):
    text = FUSIONS.replace("value = 3", "__all__ = ['Hidden']")
    (root / "passes" / "_private.py").write_text(
        "class Hidden:\n    def __call__(self, x): return x\n"
    )
    (root / "passes" / "fusions.py").write_text(text)
    (made,) = load_passes([PassSpec(reference="fusions:Hidden")], root)
    assert callable(made)


def test_a_file_called_as_a_library_is_meant_before_it(root):
    (made,) = load_passes([PassSpec(reference="json:loads")], root)
    assert made(None) is None


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """An installed distribution that offers a module, and an object of another module."""
    site = tmp_path / "site"
    (site / "acme").mkdir(parents=True)
    (site / "acme" / "__init__.py").write_text("")
    own = "from subprocess import Popen\ndef fuse(graph_module):\n    return None\n"
    (site / "acme" / "passes.py").write_text(own)
    (site / "acme" / "other.py").write_text(own)
    (site / "acme" / "more.py").write_text(own)
    info = site / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    points = "[pte_pipeline.passes]\nall = acme.passes\none = acme.other:fuse\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


def test_a_distribution_offers_passes_by_an_entry_point(root, offered):
    for reference in ("acme.passes:fuse", "acme.other:fuse"):
        assert load_passes([PassSpec(reference=reference)], root)
        assert "acme/passes.py" in source_files(reference, root)
    for reference in ("acme.passes:Popen", "acme.other:Popen", "acme.more:fuse", "acme:passes"):
        with pytest.raises(PipelineError, match=f"pass {reference}: is"):
            load_passes([PassSpec(reference=reference)], root)


def test_the_remedy_goes_by_what_is_installed(tmp_path):
    assert remedy("no_such.fusions:Fuse").startswith("write passes/no_such/fusions.py")
    assert remedy("torch.fx.passes:Fuse").startswith("import Fuse in a file of passes/")
    assert remedy("passes.norms:Fuse") == "name modules relative to passes/: norms:Fuse"
    (tmp_path / "passes").mkdir()
    text = "from collections import OrderedDict\n__all__ = ['OrderedDict']\n"
    (tmp_path / "passes" / "ours.py").write_text(text)
    with pytest.raises(PipelineError, match="can't be called"):  # named and instantiated
        load_passes([PassSpec(reference="ours:OrderedDict")], tmp_path)


EXECUTORCH = "executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass"


def test_executorchs_own_passes_are_offered(root):
    """They are in a namespace package, without an `__init__.py` to show that it is installed."""
    (made,) = load_passes([PassSpec(reference=EXECUTORCH, options={"patterns": ["cache"]})], root)
    assert made.patterns == ["cache"]
    assert list(source_files(EXECUTORCH, root)) == ["executorch/exir/passes/init_mutable_pass.py"]
    private = "executorch.backends.xnnpack._passes:ConvertToLinearPass"
    assert type(load_passes([PassSpec(reference=private)], root)[0]).__name__ in private


@pytest.mark.parametrize(
    "reference",
    [
        "executorch.exir.passes.init_mutable_pass:List",  # imported for internal use
        "executorch.exir.passes:logging",
        "executorch.exir.passes:dead_code_elimination_pass",  # a function
        "executorch.exir.pass_base:ExportPass",  # not in a module of passes
        "executorch.exir.capture:ExecutorchBackendConfig",
        "executorch.devtools.size_analysis_tool.size_analysis_tool:generate_model_size_information",
        "executorch.examples.passes.any:Any",
        "executorch.backends.xnnpack.test.passes.any:Any",
        "executorch.exir.passes.no_such:Any",
    ],
)
def test_nothing_else_of_executorch_is(root, reference):
    with pytest.raises(PipelineError, match=f"pass {reference}: "):
        load_passes([PassSpec(reference=reference)], root)


def test_a_pass_of_executorch_is_given_no_file(root):
    """DebugPass overwrites any file that its options name."""
    victim = root / "victim"
    victim.write_text("kept")
    options = {"log_filename": str(victim), "msg": "ssh-ed25519 AAAA"}
    reference = "executorch.exir.passes:DebugPass"
    with pytest.raises(PipelineError, match="DebugPass: has the option 'log_filename', but"):
        load_passes([PassSpec(reference=reference, options=options)], root)
    assert victim.read_text() == "kept"
    options = {"msg": "seen", "show_full_path": True, "path_filter": "models"}
    assert load_passes([PassSpec(reference=reference, options=options)], root)


def test_no_sdk_is_downloaded_for_a_pass(root, monkeypatch):
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    reference = "executorch.backends.qualcomm._passes.layout_transform:LayoutTransform"
    with pytest.raises(PipelineError, match="downloads an SDK when it is imported; set QNN_SDK"):
        load_passes([PassSpec(reference=reference)], root)
    assert "executorch.backends.qualcomm" not in sys.modules


def test_a_namespace_of_a_distribution_offers_passes(root, offered):
    """Like `executorch`, it has no file."""
    inner = offered / "space" / "fusions"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("def fuse(graph_module):\n    return None\n")
    (inner / "more.py").write_text("")
    points = "[pte_pipeline.passes]\nnested = space.fusions\n"
    (offered / "acme-1.0.dist-info" / "entry_points.txt").write_text(points)
    assert load_passes([PassSpec(reference="space.fusions:fuse")], root)
    files = source_files("space.fusions:fuse", root)
    assert set(files) == {"space/fusions/__init__.py", "space/fusions/more.py"}
    del sys.modules["space.fusions"], sys.modules["space"]


def test_a_factory_makes_passes_of_its_options(root):
    (root / "passes" / "made.py").write_text(
        "from fusions import Fuse, nothing\n"
        "class Manager:\n    def __init__(self, passes): self.passes = passes\n"
        "def several(bits): return [nothing, *(Fuse(each) for each in bits)]\n"
        "def one(): return nothing\n"
        "def managed(): return Manager([nothing])\n"
        "def none(): return []\n"
        "def number(): return 3\n"
    )

    def make(name, **options):
        return load_passes([PassSpec(reference=name, options=options, factory=True)], root)

    assert [each.bits for each in make("made:several", bits=[4, 8])[1:]] == [4, 8]
    assert len(make("made:one")) == len(make("made:managed")) == 1
    for name in ("made:none", "made:number"):
        with pytest.raises(PipelineError, match=f"pass {name}: makes neither a pass nor a list of"):
            make(name)
    with pytest.raises(PipelineError, match="pass fusions:Popen: is not a class or function"):
        make("fusions:Popen", args="id")


def test_a_factory_is_written_before_a_pass(tmp_path):
    text = "model: m\nmethods: {f: {partitioners: [], edge: {passes: [%s]}}}\n"
    (tmp_path / "good.yaml").write_text(text % "{factory: {fusions:make: {bits: 8}}}")
    (tmp_path / "bare.yaml").write_text(text % "{factory: fusions:make}")
    (tmp_path / "wrong.yaml").write_text(text % "{factory: subprocess}")
    found = read_configs(tmp_path)
    for name, options in (("good", {"bits": 8}), ("bare", {})):
        (spec,) = found.configs[name].methods["f"].edge.passes
        assert (spec.reference, spec.options, spec.factory) == ("fusions:make", options, True)
    assert "must be module:name" in str(found.problems["wrong"][0])
