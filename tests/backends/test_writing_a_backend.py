"""docs/guides/writing-a-backend.md: its files form a distribution whose backend lowers and runs."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.bench import REPOSITORY
from tests.support.lowerable import OneProcess
from tests.support.patches import python_path
from tests.support.resident import run_python

pytestmark = pytest.mark.slow

PAGE = (REPOSITORY / "docs" / "guides" / "writing-a-backend.md").read_text()
# A file: its path in backquotes on a separate line, then its content.
FILES = dict(re.findall(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the page's files, and install the distribution in a temporary folder."""
    root = tmp_path_factory.mktemp("written")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    site = tmp_path_factory.mktemp("site")  # exporters forget modules of their workspace
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--no-build-isolation", "--target", str(site), str(root / "acme-sums")]
    subprocess.run(install, check=True, timeout=300)
    return OneProcess(root), {"PYTHONPATH": python_path(site)}


@pytest.fixture(scope="module")
def built(written):
    bench, path = written
    assert bench.doit(**path) == 0, bench.output
    return bench


def test_the_page_names_all_files():
    assert list(FILES) == [
        "acme-sums/pyproject.toml",
        "acme-sums/acme_sums/__init__.py",
        "acme-sums/acme_sums/partitioner.py",
        "acme-sums/acme_sums/compiler.py",
        "acme-sums/acme_sums/runtime.py",
        "models/balance.py",
        "partition_configs/balance.yaml",
    ]
    python = PAGE.count("```python")
    assert python == sum(name.endswith(".py") for name in FILES)


def test_the_backend_is_listed_with_its_options(written):
    bench, path = written
    assert bench.doit("backends", "sums", **path) == 0, bench.output
    assert "subtract" in bench.output and "Acme's device" in bench.output


def test_the_package_is_lowered_and_run(built):
    record = json.loads(built.bytes_of("balance", "report.json"))
    (method,) = record["methods"]
    assert record["ok"] and method["runs"] and not method["not_run"]
    manifest = json.loads(built.bytes_of("balance", "manifest.json"))
    counts = manifest["methods"]["features"]["delegation"]
    assert (counts["delegated_nodes"], counts["nodes"]) == (2, 3)
    assert counts["partitions"] == {"AcmeSums": 1}
    report = built.bytes_of("balance", "report.md").decode()
    assert "2 of 3" in report and "exact" in report


def test_the_text_of_the_page_stands_in_the_package(built):
    (text,) = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.M | re.S)
    assert text.encode() in built.bytes_of("balance", "balance.pte")


def test_an_operator_that_the_partitioner_should_not_have_taken_is_told_with_its_line(written):
    bench, path = written
    code = """
        import torch
        from executorch.exir import to_edge
        from pipeline.store.errors import PipelineError
        from acme_sums.compiler import preprocess
        from models.balance import export_methods
        try:
            preprocess(to_edge(export_methods()["features"]).exported_program(), [])
        except PipelineError as error:
            print(error)
    """
    folders = os.pathsep.join([str(bench.root), path["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": folders}
    done = run_python("-c", textwrap.dedent(code), cwd=bench.root, env=environment)
    assert "aten.mul.Tensor" in done.stdout
    assert "# models/balance.py:8, in Balance.forward" in done.stdout
