"""docs/tutorial.md, followed literally: its files are written into the folders that its commands
create, its commands run in one shell, and they print what it says, line by line.

The tests' environment lends its libraries to the new one, so that pip installs only this project;
PTE_PIPELINE_TUTORIAL=whole installs everything, as for a newcomer.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.support.bench import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
WHOLE = os.environ.get("PTE_PIPELINE_TUTORIAL") == "whole"
# A file, with its path on a separate line; or commands; or the output of the commands above it.
_PART = re.compile(r"(?:^`([\w./-]+)`\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "== part"
# The script that pip makes for doit when installing it with the project.
_DOIT = "#!{python}\nimport sys\nfrom doit.__main__ import main\nsys.exit(main())\n"


def script():
    """Return the tutorial as a shell script that marks its parts, and each part's output."""
    lines, expected = [], []
    for path, kind, text in _PART.findall(PAGE):
        if path:
            lines += [f"cat > {path} <<'END OF FILE'", text.rstrip("\n"), "END OF FILE"]
        elif kind == "sh":
            lines += [f"echo '{_MARK}'", text.rstrip("\n")]
            expected.append([])
            if len(expected) == 1 and not WHOLE:
                lines.append('"$LEND"')
        else:
            assert kind == "text"
            expected[-1] += text.splitlines()
    return "\n".join(lines), expected


def lend(folder):
    """Write the program that gives the new environment a `doit`."""
    path = folder / "lend"
    doit = _DOIT.format(python="$VIRTUAL_ENV/bin/python")
    path.write_text(
        f'#!/bin/sh\ncat > "$VIRTUAL_ENV/bin/doit" <<END\n{doit}END\n'
        'chmod +x "$VIRTUAL_ENV/bin/doit"\n'
    )
    path.chmod(0o755)
    return path


def is_printed(line, output):
    """Return whether a page's line is a whole line of an output, with `...` for any text."""
    pattern = re.escape(line).replace(re.escape("..."), ".*")
    return re.search(f"^{pattern}$", output, re.MULTILINE) is not None


def test_a_line_is_compared_whole():
    assert is_printed("up to date: 1 package", "built\nup to date: 1 package\n")
    assert is_printed("of HEAD (...)", "of HEAD (7a8cf15ee68b)")
    assert not is_printed("up to date", "up to date: 1 package")
    assert not is_printed("of HEAD (...)", "of main (7a8cf15ee68b)")


def test_every_part_is_known():
    _, expected = script()
    assert len(_PART.findall(PAGE)) == len(read_blocks("docs/tutorial.md"))
    assert len(expected) == 8 and sum(map(bool, expected)) == 6


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path):
    shop = tmp_path / "shop"
    shop.mkdir()
    source = tmp_path / "pte-pipeline"
    for name in ("pipeline", "pte_pipeline", "examples/ci"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    user = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PTE_PIPELINE", "PYTHON"))}
    environment = {**kept, **user, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if not WHOLE:
        environment |= {"PYTHONPATH": sysconfig.get_path("purelib"), "LEND": str(lend(tmp_path))}
    text, expected = script()
    began = time.monotonic()
    done = subprocess.run(
        ["bash"],
        input=text,
        cwd=shop,
        env=environment,
        text=True,
        timeout=1200,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(f"{time.monotonic() - began:.0f} s\n{done.stdout}")
    assert done.returncode == 0, done.stdout
    printed = done.stdout.split(_MARK)[1:]
    assert len(printed) == len(expected)
    for output, lines in zip(printed, expected, strict=True):
        assert [line for line in lines if not is_printed(line, output)] == [], output
    assert (shop / "build" / "classifier-phone" / "classifier-phone.pte").is_file()
