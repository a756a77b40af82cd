"""The configs that README and the guides show are valid, whole or as a part of a config."""

import re

import pytest
import yaml

from tests.support.bench import REPOSITORY
from tests.support.configs import read_configs

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/guides/quantize.md",
    "docs/guides/language-models.md",
)
# What the parts leave out.
BASE = """
model: m
defaults: {partitioners: [xnnpack]}
methods: {classify: {}, features: {}, prefill: {}, decode: {}}
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_configs_of_a_page_are_valid(page, tmp_path):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```yaml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for base in ("_base", "_language"):
        (tmp_path / f"{base}.yaml").write_text(BASE, encoding="utf-8")
    for number, (_, block) in enumerate(blocks):
        config = yaml.safe_load(block)
        config = {"methods": {"classify": config}} if "quantize" in config else config
        whole = config if "model" in config else {"extends": "_base", **config}
        written = yaml.safe_dump(whole, sort_keys=False)
        (tmp_path / f"p{number}.yaml").write_text(written, encoding="utf-8")
    found = read_configs(tmp_path)
    assert found.problems == {}
    assert len(found.configs) >= len(blocks)
