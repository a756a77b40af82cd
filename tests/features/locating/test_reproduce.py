"""A failed method's files run with one command, which also tells when the bug is fixed."""

import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.config.validation import Limits
from pipeline.features.locating.measuring import _find_quantized, reproductions
from pipeline.features.pages.markdown import markdown
from pipeline.plan.actions import Action
from pipeline.program.inputs import InputSet
from pipeline.run.install import clean, install
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from pipeline.validate.method_result import MethodValidation
from tests.features.locating.test_locate import X, damaged_weight, portable
from tests.support.resident import run_python

LIMITS = {"run": [Limits(atol=1e-5, rtol=1e-5)]}


def files():
    evidence_of_it = portable().located("run", [X], pte=damaged_weight())
    return reproductions("pack", ["small.pte"], portable().sources, LIMITS, {"run": evidence_of_it})


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, Store(tmp_path / ".store"), 1)


def installed(workspace, made, pte, kind="validate"):
    action = Action(kind, "small", "pack", None, {"kind": kind}, None)
    put = {name: workspace.store.put(data) for name, data in made.items()}
    install(workspace, action, {"files": put})
    (workspace.package("pack") / "small.pte").write_bytes(pte)


def ran(workspace):
    script = workspace.package("pack") / "reproduce" / "run" / "reproduce.py"
    return run_python(str(script), cwd=workspace.root)


@pytest.mark.slow
def test_it_fails_until_the_package_is_mended(workspace):
    installed(workspace, files(), damaged_weight())
    result = ran(workspace)
    assert result.returncode == 1, result.stderr
    assert "pack: method 'run'" in result.stdout
    assert "call 1, output 0: error " in result.stdout
    assert "FAILS: absolute error " in result.stdout
    assert "first divergence: aten.linear.default in second, " in result.stdout
    assert result.stdout.endswith("it fails\n")
    (workspace.package("pack") / "small.pte").write_bytes(portable().pte)
    result = ran(workspace)
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith("it passes\n")


def test_it_holds_no_pickle_and_no_path_of_this_machine():
    made = files()
    tensors = [f"{name}.safetensors" for name in ("divergence", "expected", "inputs")]
    names = [*tensors, "reproduce.json", "reproduce.py"]
    assert sorted(made) == [f"reproduce/run/{name}" for name in names]
    record = json.loads(made["reproduce/run/reproduce.json"])
    assert record["files"] == ["small.pte"]
    assert record["limits"][0]["atol"] == 1e-5
    assert [culprit["kind"] for culprit in record["culprits"]] == ["operator"]
    assert not any(b"/home" in data or b"/work/" in data for data in made.values())


def test_it_goes_when_the_method_passes_again(workspace):
    installed(workspace, files(), damaged_weight())
    folder = workspace.package("pack")
    assert (folder / "reproduce" / "run" / "reproduce.py").is_file()
    installed(workspace, {"report.md": b"passed"}, portable().pte)
    assert not (folder / "reproduce").exists()
    assert (folder / "report.md").is_file()


def test_clean_takes_it_away_and_nothing_else(workspace):
    installed(workspace, files(), damaged_weight())
    folder = workspace.package("pack")
    own = folder / "reproduce" / "notes.txt"
    own.write_text("mine")
    removed = clean(workspace, "pack")
    assert "build/pack/reproduce/run/reproduce.py" in removed
    assert not (folder / "reproduce" / "run").exists()
    assert own.read_text() == "mine"


def test_a_record_that_leads_elsewhere_removes_nothing(workspace):
    outside = workspace.root / "mine.txt"
    outside.write_text("mine")
    installed(workspace, {"report.md": b""}, b"")
    state = workspace.state("pack")
    state["validate"]["files"] = {"../../mine.txt": "0", "/etc/hostname": "0"}
    workspace.write_state("pack", state)
    clean(workspace, "pack")
    assert outside.read_text() == "mine"


def test_layouts_and_numbers_survive(workspace):
    found = portable().located("run", [X], pte=damaged_weight())
    transposed = InputSet((X.t().contiguous().t(),))
    found = type(found)(found.culprits, calls=(("run", transposed),))
    made = reproductions("pack", ["small.pte"], portable().sources, LIMITS, {"run": found})
    record = json.loads(made["reproduce/run/reproduce.json"])
    assert record["calls"] == [{"method": "run", "layouts": [[0, 1]]}]  # as the method was exported
    assert torch.equal(transposed.args[0], X)


def test_the_report_shows_it_under_failures():
    found = portable().located("run", [X], pte=damaged_weight())
    limits = {"atol": 1e-5, "rtol": 1e-5, "inputs": 1, "seed": 0, "steps": 1}
    result = MethodValidation("run")
    result.fail("wrong", "example 0", "output")
    method = {
        **result.to_json(),
        "culprits": list(found.culprits),
        "culprit_notes": ["run: and this"],
    }
    record = {
        "package": "pack",
        "ok": False,
        "verdict": "failed",
        "failures": ["run: wrong"],
        "settings": limits,
        "methods": [method],
    }
    lines = markdown(record).splitlines()
    section = lines[lines.index("### Where it goes wrong") :]
    cells = section[4].split(" | ")
    assert cells[0] == "| `run`" and cells[1].startswith("`aten.linear.default`")
    assert cells[2] == "`second`"
    assert cells[3].startswith(
        "first divergence: aten.linear.default in second, tests/features/locating/test_locate.py"
    )
    assert "run: and this" in section


@pytest.mark.parametrize(
    ("limits_from", "about", "names"),
    [
        ("quantized", "quantized", ["prefill"]),
        ("quantized", "quantization", []),
        ("float32", "", ["prefill"]),  # on state that a quantized method may have written
        ("float32", "quantization", []),
    ],
)
def test_a_failure_is_reproduced_with_the_programs_that_showed_it(limits_from, about, names):
    result = MethodValidation("decode", limits_from=limits_from)
    result.fail("SQNR 12.5 dB is below 20 dB", about=about)
    result.fails_quantized = about == "quantized"
    subject = SimpleNamespace(quantized={"prefill": SimpleNamespace(program=None)})
    assert [*_find_quantized(result, subject)] == names
