"""Model files, passes and operator libraries named like a module that they import."""

import re

import pytest

from pipeline.features.exporters.export import export
from pipeline.plan.plan import Plan
from pipeline.plan.status import export_status
from pipeline.plan.user_code import CodeReader
from pipeline.run.stages import Stages
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

EXPORTER = """
{imports}
import torch

class Twice(torch.nn.Module):
    def forward(self, x):
        return x * NUMBER

def export_methods():
    return {{"forward": torch.export.export(Twice(), (torch.ones(2),))}}
"""
IMPORTS = {
    "plain": "NUMBER = 2",
    "safetensors": "import safetensors.torch; NUMBER = 2 + len(safetensors.torch.__name__) * 0",
    "types": "import types, dataclasses; NUMBER = types.SimpleNamespace(x=2).x",
    "inspect": "import inspect; NUMBER = len(inspect.signature(lambda a, b: 0).parameters)",
    "tokenize": "import tokenize, linecache; NUMBER = 2 if tokenize.tokenize else 0",
    "numpy": "import numpy as np; NUMBER = int(np.ones(2).sum())",
    "torch": "NUMBER = 2",
    "tokenizers": "from tokenizers import Tokenizer; NUMBER = 2",
}
HELPED = "import common, blocks.parts\nfrom . import common as same\nfrom .blocks import parts\n"
HELPED += "from tokenizers import Tokenizer\nassert same is common and parts is blocks.parts\n"
HELPED += "NUMBER = common.NUMBER"


def write(root, name, imports):
    config = f"model: {name}\nmethods: {{forward: {{partitioners: []}}}}\n"
    (root / "partition_configs" / f"{name}.yaml").write_text(config)
    (root / "models" / f"{name}.py").write_text(EXPORTER.format(imports=imports))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A workspace whose models are all named like a module that they need."""
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    (tmp_path / "models" / "blocks").mkdir(parents=True)
    (tmp_path / "partition_configs").mkdir()
    for name, imports in IMPORTS.items():
        write(tmp_path, name, imports)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(root, model):
    """Export a model as a run does; return the digest of its program."""
    workspace = open_workspace(root)
    export(Plan(workspace).models.export(model), workspace, Stages())
    plan = Plan(workspace)
    assert export_status(plan, model).current
    return plan.models.methods(model)["forward"].program


def test_a_model_may_be_called_as_the_library_that_it_imports(root):
    """Its program is the same, whatever the name of its file."""
    assert len({program(root, model) for model in IMPORTS}) == 1


def test_models_have_siblings_by_plain_and_by_relative_names(root):
    (root / "models" / "common.py").write_text("import safetensors\nNUMBER = 2\n")
    (root / "models" / "blocks" / "parts.py").write_text("import types\n")
    write(root, "helped", HELPED)
    assert program(root, "helped") == program(root, "plain")
    (root / "models" / "common.py").write_text("NUMBER = 3\n")
    assert not export_status(Plan(open_workspace(root)), "helped").current


def test_a_new_file_called_as_an_installed_library_exports_no_other_model_again(root):
    (root / "models" / "tokenizers.py").unlink()
    write(root, "user", IMPORTS["tokenizers"])
    program(root, "user")
    write(root, "tokenizers", IMPORTS["tokenizers"])
    assert export_status(Plan(open_workspace(root)), "user").current


@pytest.mark.parametrize("model", ["plain", "types"])
def test_an_error_names_the_line_of_the_model(root, model):
    write(root, model, "NUMBER = 2\nraise KeyError('k')")
    with pytest.raises(PipelineError, match=re.escape(f"models/{model}.py:3: `raise KeyError")):
        program(root, model)


def test_a_sibling_that_an_installed_module_hides_is_named(root):
    (root / "models" / "tokenizers.py").write_text("def make(): pass\n")
    write(root, "plain", "import tokenizers; NUMBER = tokenizers.make()")
    line = "which hides models/tokenizers.py; to import that file, write `from . import tokenizers`"
    with pytest.raises(PipelineError, match=re.escape(line)):
        program(root, "plain")


@pytest.mark.parametrize("folder", ["passes", "operators"])
def test_what_a_file_called_as_a_library_imports_counts(root, folder):
    (root / folder).mkdir()
    (root / folder / "safetensors.py").write_text("import safetensors, common\n")
    (root / folder / "common.py").write_text("import types\n")
    inputs = CodeReader(open_workspace(root))
    assert {"safetensors"} <= set(inputs.imports((root / folder).glob("*.py")))
    assert "common" not in inputs.imports((root / folder).glob("*.py"))
