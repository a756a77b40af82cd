"""The docs' examples run as printed: a page's Python blocks form one program, which runs in a new
process and a temporary folder."""

import re

import pytest

from tests.support.bench import REPOSITORY
from tests.support.resident import run_python

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference/python-api.md"])
def test_examples_run(name, tmp_path):
    text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    assert blocks
    # Keep the line numbers, so that tracebacks point to the page
    lines = [""] * len(text.splitlines())
    for block in blocks:
        first = text[: block.start(1)].count("\n")
        own = block[1].splitlines()
        lines[first : first + len(own)] = own
    script = tmp_path / "example.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run_python(str(script), cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
