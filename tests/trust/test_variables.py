"""Variables that a config reads: only listed ones; secrets are never recorded."""

import json
import os
import pickle
from types import SimpleNamespace

import pytest

from pipeline.config.compose import Folder
from pipeline.config.parser import parse_package
from pipeline.features.explain.resolved import resolved_view
from pipeline.features.passes.loading import load_passes
from pipeline.store.errors import PipelineError
from pipeline.store.settings import Environment
from pipeline.store.workspace import open_workspace
from tests.support.lowerable import bench_for

SECRET = "hunter2-hunter2-hunter2"
VALUES = {"SHARDS": "3", "TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
LISTED = Environment(["SHARDS", "TOKEN"], ["TOKEN"], values=VALUES)
CONFIG = """\
model: m
target: {target}
methods: {{f: {{partitioners: [], edge: {{passes: [{passes}]}}}}}}
"""


def parse(folder, text, environment=LISTED):
    (folder / "p.yaml").write_text(text)
    composition = Folder(folder, environment).compose(folder / "p.yaml")
    config, document, problems = parse_package("p", [composition])
    return SimpleNamespace(config=config, document=document, problems=problems)


def says(parsed):
    assert not any(SECRET in str(each) or "\n" in str(each) for each in parsed.problems)
    problem = parsed.problems[-1]
    return str(problem).partition(": ")[2]


@pytest.mark.parametrize(
    "text",
    [
        "${AWS_SECRET_ACCESS_KEY}",
        "${AWS_SECRET_ACCESS_KEY:-}",
        "${AWS_SECRET_ACCESS_KEY:-none}",
        "a${AWS_SECRET_ACCESS_KEY}b",
        '"${AWS_SECRET_ACCESS_KEY}"',
        "${shards}",
        "${HOME}",
        "${PATH:-x}",
    ],
)
def test_a_variable_that_is_not_listed_is_refused(tmp_path, text):
    said = says(parse(tmp_path, CONFIG.format(target=text, passes="")))
    assert said.startswith("target: configs may not read the variable ")
    assert said.endswith("; add it to `variables` of [tool.pte-pipeline] in pyproject.toml")


@pytest.mark.parametrize(
    "text",
    [
        "extends: ${HOME}\nmodel: m\nmethods: {f: {partitioners: []}}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nmatrix: {a: ['${HOME}']}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nmatrix: {a: [1]}\npackage: p-${HOME}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nconstant_methods: {g: ['${HOME}']}\n",
        "model: m\ndefaults: {partitioners: ['${HOME}']}\nmethods: {f: {}}\n",
    ],
)
def test_nor_anywhere_else(tmp_path, text):
    assert "configs may not read the variable HOME" in says(parse(tmp_path, text))


def test_a_listed_one_is_filled_in(tmp_path):
    parsed = parse(tmp_path, CONFIG.format(target="arm-${SHARDS}", passes=""))
    assert parsed.config.target == "arm-3"


@pytest.mark.parametrize(
    "text",
    [
        "model: ${TOKEN}\nmethods: {f: {partitioners: []}}\n",
        "model: m\ntarget: ${TOKEN}\nmethods: {f: {partitioners: []}}\n",
        "model: m\ntarget: x${TOKEN}\nmethods: {f: {partitioners: []}}\n",
        "model: m\ntarget: '${TOKEN}'\nmethods: {f: {partitioners: []}}\n",
        "model: m\ntarget: ${TOKEN:-x}\nmethods: {f: {partitioners: []}}\n",
        "model: m\nmethods: {f: {partitioners: ['${TOKEN}']}}\n",
        "model: m\nmethods: {f: {partitioners: [ethos-u: {extra_flags: ['${TOKEN}']}]}}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nconstant_methods: {g: '${TOKEN}'}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nconstant_methods: {g: [1, '${TOKEN}']}\n",
        "model: m\nmethods: {f: {partitioners: [], modules: ['${TOKEN}']}}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nmatrix: {a: ['${TOKEN}']}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nmatrix: {a: [1]}\npackage: '${TOKEN}'\n",
        "extends: ${TOKEN}\nmodel: m\nmethods: {f: {partitioners: []}}\n",
        "model: m\nmethods: {f: {partitioners: [], edge: {passes: ['${TOKEN}']}}}\n",
        "model: m\nmethods: {f: {partitioners: []}}\nemit: {passes: [a:B: {x: 'x${TOKEN}'}]}\n",
        "model: m\nmethods: {f: {partitioners: [], quantize: {calibration: '${TOKEN}'}}}\n",
    ],
)
def test_a_secret_in_what_is_recorded_is_refused(tmp_path, text):
    for problem in (found := parse(tmp_path, text)).problems:
        assert SECRET not in str(problem)
    assert found.config is None
    assert "the variable TOKEN is secret" in str(found.problems) or "is a Secret" in str(
        found.problems
    )


PASSES = "keys:Key: {deep: [{token: '${TOKEN}'}], plain: $$5}"


def test_a_secret_option_of_a_pass_is_recorded_nowhere(tmp_path):
    parsed = parse(tmp_path, CONFIG.format(target="t", passes=PASSES))
    config, (spec,) = parsed.config, parsed.config.methods["f"].edge.passes
    view = "\n".join(resolved_view(config, parsed.document))
    shown = [json.dumps(config.resolved()), repr(config), str(spec), view, config.model_dump_json()]
    assert all(SECRET not in each for each in shown)
    assert "keys:Key: {deep: [{token: '${TOKEN}'}], plain: $$5}" in view or "${TOKEN}" in view
    other = parse(tmp_path, CONFIG.format(target="t", passes=PASSES), Environment(
        ["TOKEN"], ["TOKEN"], values={"TOKEN": "another"}))  # fmt: skip
    assert other.config.resolved() != config.resolved()  # another value gives another key
    again = parse(tmp_path, CONFIG.format(target="t", passes=PASSES)).config.resolved()
    assert again == config.resolved()
    assert pickle.loads(pickle.dumps(spec)).reveal() == {"deep": [{"token": SECRET}], "plain": "$5"}


def test_the_pass_is_given_the_secret_and_its_error_does_not_tell(tmp_path):
    (tmp_path / "passes").mkdir()
    text = (
        "class Key:\n    def __init__(self, deep, plain):\n        self.token = deep[0]['token']\n"
    )
    text += "    def __call__(self, module): pass\n"
    (tmp_path / "passes" / "keys.py").write_text(text)
    spec = parse(tmp_path, CONFIG.format(target="t", passes=PASSES)).config.methods["f"].edge.passes
    (made,) = load_passes(spec, tmp_path)
    assert made.token == SECRET
    text = "class Key:\n    def __init__(self, deep, plain):\n        raise ValueError(deep)\n"
    (tmp_path / "passes" / "keys.py").write_text(text)
    with pytest.raises(PipelineError) as caught:
        load_passes(spec, tmp_path)
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None
    assert "${TOKEN}" in str(caught.value)


def test_an_untrusted_build_asks_only_its_environment(tmp_path, monkeypatch):
    listed = 'variables = ["AWS_SECRET_ACCESS_KEY"]\nsecrets = ["X"]\ndata = ["/"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pte-pipeline]\n{listed}")
    found = open_workspace(tmp_path)
    assert found.environment.names == {"AWS_SECRET_ACCESS_KEY", "X"} and len(found.data) == 1
    monkeypatch.setenv("PTE_PIPELINE_UNTRUSTED", "1")
    found = open_workspace(tmp_path)
    assert not found.environment.names and not found.environment.secrets and not found.data
    assert "PTE_PIPELINE_VARIABLES" in found.environment.remedy
    monkeypatch.setenv("PTE_PIPELINE_VARIABLES", "SHARDS, TARGET")
    assert open_workspace(tmp_path).environment.names == {"SHARDS", "TARGET"}


KEYS = """\
from torch.fx.passes.infra.pass_base import PassResult

class Key:
    def __init__(self, token):
        assert token == "%s"

    def __call__(self, graph_module):
        return PassResult(graph_module, False)
"""


@pytest.mark.slow
def test_no_file_of_a_build_holds_a_secret(tmp_path):
    passes = [{"keys:Key": {"token": "${TOKEN}"}}]
    config = {
        "target": "t-${SHARDS}",
        "methods": {
            "features": {"partitioners": [], "edge": {"passes": passes}},
            "classify": {"partitioners": []},
        },
        "emit": {"passes": passes},
        "validate": {"inputs": 1},
    }
    leak = {**config, "target": "${AWS_SECRET_ACCESS_KEY:-}"}
    bench = bench_for(tmp_path / "workspace", {"keyed": config, "leak": leak})
    listed = '[tool.pte-pipeline]\nvariables = ["SHARDS"]\nsecrets = ["TOKEN"]\n'
    (bench.root / "pyproject.toml").write_text(listed)
    (bench.root / "passes").mkdir()
    (bench.root / "passes" / "keys.py").write_text(KEYS % SECRET[::-1])
    given = {**VALUES, "TOKEN": SECRET[::-1]}
    assert bench.doit(**given) == 1
    assert "configs may not read the variable AWS_SECRET_ACCESS_KEY" in bench.output
    assert bench.outcomes()["link keyed"] == "built", bench.output
    printed = bench.output
    bench.doit("plan", "--resolved", "keyed", **given)
    assert "${TOKEN}" in bench.output and "t-3" in bench.output
    bench.doit("explain", "keyed", **given)
    files = [p for p in bench.root.rglob("*") if p.is_file() and "passes" not in p.parts]
    assert any(path.suffix == ".pte" for path in files)
    for text in (SECRET.encode(), SECRET[::-1].encode()):
        assert not [path for path in files if text in path.read_bytes()]
        assert text not in os.fsencode(printed + bench.output)
    assert bench.doit("lower:keyed", **given) == 0 and "up to date" in bench.output
