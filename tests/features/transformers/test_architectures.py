"""Architectures of transformers, built as packages: the table in docs/guides/transformers.md.

`ARCHITECTURES=llava,qwen2 pytest -m release -s tests/features/transformers/test_architectures.py`
builds some of them and prints their rows.
"""

import ast
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.bench import REPOSITORY, Bench
from tests.support.torchvision import import_torchvision

SOURCE = Path(__file__).with_name("architectures.py")
GUIDE = REPOSITORY / "docs" / "guides" / "transformers.md"
_ROW = re.compile(r"\| `(\w+)` \|.*\| (built|refused) \|")
_EXPORTER = """
import _architectures

export_methods = _architectures.MODELS[{name!r}][1]().export_methods
"""


def read_table():
    """Return the guide's verdict on each architecture."""
    return dict(_ROW.findall(GUIDE.read_text(encoding="utf-8")))


def test_the_guide_has_a_row_for_each_architecture():
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (models,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODELS"
    )
    names = {ast.literal_eval(key) for key in models.keys}
    assert names == set(read_table()) and len(names) > 40


@pytest.mark.release
def test_architectures_are_built_as_the_guide_says(tmp_path):
    pytest.importorskip("transformers")
    import_torchvision()
    from tests.features.transformers.architectures import EXCEPTIONS, MODELS

    bench = Bench(tmp_path)
    for folder in ("models", "partition_configs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dodo.py").write_text("from pte_pipeline.tasks import *\n")
    shutil.copy(SOURCE, tmp_path / "models" / "_architectures.py")
    names = list(filter(None, os.environ.get("ARCHITECTURES", "").split(","))) or [*MODELS]
    for name in names:
        methods = {method: {} for method in MODELS[name][0]}
        config = {"model": name, "target": "host", "methods": methods}
        edge = {"core_aten_ops_exceptions": EXCEPTIONS[name]} if name in EXCEPTIONS else {}
        config["defaults"] = {"partitioners": ["xnnpack"], "edge": edge}
        (tmp_path / "partition_configs" / f"{name}.yaml").write_text(json.dumps(config))
        (tmp_path / "models" / f"{name}.py").write_text(_EXPORTER.format(name=name))
    bench.doit(timeout=7200)
    print(bench.output)
    built = {name: (tmp_path / "build" / name / f"{name}.pte").is_file() for name in names}
    table = read_table()
    assert built == {name: table[name] == "built" for name in names}
