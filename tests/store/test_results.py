"""The forms of stored results."""

import subprocess
import sys

FORMS = """
import sys
from pipeline.moments import find_functions
from pipeline.store.results import check_of_kind

outlines = find_functions("outlines")
for kind in outlines:
    check_of_kind(kind)
print("source-call" in outlines, "torch" in sys.modules)
"""


def test_the_process_that_builds_reads_them_without_torch():
    output = subprocess.run(
        [sys.executable, "-c", FORMS], capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["True", "False"]
