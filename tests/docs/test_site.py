"""The site builds from docs/ without a warning, and its pages load nothing from elsewhere."""

import re
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest

from tests.support.bench import REPOSITORY
from tools.site_version import on_config


def test_pages_name_the_version_that_they_are_of():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    foot = on_config(SimpleNamespace()).copyright
    assert foot.startswith(f"{project['name']} {project['version']}, for ExecuTorch ")
    assert "hooks: [tools/site_version.py]" in (REPOSITORY / "mkdocs.yml").read_text()


@pytest.mark.slow
def test_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    """Strict mode checks links, anchors and the navigation."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 15
    assert on_config(SimpleNamespace()).copyright in (tmp_path / "index.html").read_text()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)|<link[^>]* href="(https?:[^"]+)', text
        )
        assert not loaded, page
        assert 'class="mermaid"' not in text, page  # Material loads the library that draws it
