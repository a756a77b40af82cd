"""docs/guides/writing-a-feature.md: its files form a distribution whose feature works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import moments
from pipeline.moments import Feature
from tests.support.bench import REPOSITORY, bench_of
from tests.support.patches import python_path

PAGE = (REPOSITORY / "docs" / "guides" / "writing-a-feature.md").read_text()
# A file: its path in backquotes on a separate line, then its content.
FILES = dict(re.findall(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))


def test_docstring_fields_and_page_list_the_moments_in_one_order():
    source = Path(moments.__file__).read_text().partition("class Feature:")[2]
    docstring, _, fields = source.partition('"""\n\n')
    fields = fields.partition("\n\n\n")[0]
    _, _, docstring = docstring.partition("Attributes:\n")
    in_docstring = re.findall(r"^ {8}(?:(\w+): .*|(\S.*))$", docstring, re.M)
    in_fields = re.findall(r"^    (?:(\w+): .*|# (.+))$", fields, re.M)
    assert in_docstring == in_fields
    assert [name for name, _ in in_fields if name] == [*Feature.__annotations__]
    table = PAGE.partition("<!-- made by")[0]
    unlisted = {"name", "summary", "link_files", "page_files", "distribution"}
    listed = [(name, heading) for name, heading in in_fields if name not in unlisted]
    assert re.findall(r"^(?:\| `(\w+)` \|.*|### (.*))$", table, re.M) == listed[:-1]


@pytest.mark.slow
def test_a_distribution_brings_a_feature(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--no-build-isolation", "--target", str(site), str(tmp_path / "acme-notes")]
    subprocess.run(install, check=True, timeout=300)
    bench = bench_of("archives", tmp_path)
    path = {"PYTHONPATH": python_path(site)}
    assert bench.doit(**path) == 0, bench.output
    size = len(bench.bytes_of("one", "one.pte"))
    assert bench.doit("notes", "one", **path) == 0, bench.output
    assert bench.output == f'one: {{"one.pte": {size}}}\n'
    assert bench.doit("help", **path) == 0
    assert "doit notes" in bench.output
    assert bench.doit() == 0, bench.output  # without the distribution
    assert not (bench.root / "build" / "one" / "notes.json").exists()
