"""Every code block of README and docs/ is checked, by its language or by a test that runs it.

A block that matches no rule of `RULES` fails, and so does a rule that matches no block: the docs
contain nothing unchecked. `test_blocks_run.py` builds the configs and runs the commands.
"""

import fnmatch
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import executorch
import pytest
import yaml

from pipeline.features.contracts.targets import read_target
from pipeline.features.transformers.source_file import read_source
from tests.docs.block_checks import (
    check_app,
    check_doit,
    check_json,
    check_output,
    check_python,
    check_shell,
    check_toml,
)
from tests.docs.blocks import ALL, PAGES, Block, read_blocks, split_blocks, write_configs
from tests.support.bench import REPOSITORY
from tests.support.configs import read_configs


def check_configs(block: Block, folder: Path) -> None:
    count = write_configs(block, folder)
    found = read_configs(folder)
    assert found.problems == {}, found.problems
    assert len(found.configs) >= count


def check_target(block: Block, folder: Path) -> None:
    path = folder / "targets" / "phone.yaml"
    path.parent.mkdir()
    path.write_text(block.text, encoding="utf-8")
    assert read_target(path).resolved()


def check_model_source(block: Block, folder: Path) -> None:
    path = folder / "models" / "smol.yaml"
    path.parent.mkdir()
    path.write_text(block.text, encoding="utf-8")
    assert callable(read_source(str(path)))


def check_baseline(block: Block, folder: Path) -> None:
    from pipeline.features.gates.baseline import read_baseline

    (folder / "pair.yaml").write_text(block.text, encoding="utf-8")
    figures = read_baseline(folder / "pair.yaml")
    assert figures is not None and figures["methods"]


def check_hooks(block: Block, folder: Path) -> None:
    """Check a pre-commit config whose hooks call our commands."""
    for repository in yaml.safe_load(block.text)["repos"]:
        for hook in repository["hooks"]:
            assert {"id", "name", "entry", "language", "files"} <= hook.keys()
            check_shell(hook["entry"])


def check_kubernetes(block: Block, folder: Path) -> None:
    """Check a resource of dask's operator whose variables are our settings."""
    document = yaml.safe_load(block.text)
    assert document["kind"] == "DaskCluster"
    (worker,) = document["spec"]["worker"]["spec"]["containers"]
    check_shell(" ".join(f"{each['name']}=x" for each in worker["env"]) + " doit")


def check_cpp(block: Block, folder: Path) -> None:
    """Compile a block, without generating code, if a compiler and the header are installed."""
    include = Path(next(iter(executorch.__path__))) / "include"
    headers = re.findall(r"#include <([^>]+)>", block.text)
    assert headers
    compiler = shutil.which("g++")
    if compiler is None or not all((include / header).is_file() for header in headers):
        # executorch 1.4.1's wheel lacks the header of the module; its source has it.
        assert all(header.startswith("executorch/extension/") for header in headers)
        return
    lines = block.text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    path = folder / "block.cpp"
    path.write_text("\n".join([*head, "#include <string_view>", "void f() {", *body, "}"]))
    c10 = include / "executorch/runtime/core/portable_type/c10"
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", f"-I{c10}", str(path)]
    command.append("-DC10_USING_CUSTOM_GENERATED_MACROS")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_names(block: Block, folder: Path) -> None:
    """Check a tree of folders; `test_blocks_run.py` compares files in `build/` with real ones."""
    texts = [path.read_text(encoding="utf-8") for path in REPOSITORY.glob("pipeline/**/*.py")]
    sources = "\n".join(texts)
    own = ("shop", "asr", "encode", "decode", "vision", "cdef", "2345", "ab", "01")
    for line in block.text.splitlines():
        for name in re.split(r",? +", line.strip().split("   ")[0]):
            stem = name.strip("/").rpartition("/")[2].partition("...")[0].partition(".")[0]
            assert stem.partition("-")[0] in own or stem.strip(".") in sources, name


def covered_by(test: str) -> Callable[[Block, Path], None]:
    """Return the check for a block that another test runs.

    `test` is `file` or `file::part`, under tests/.
    """

    def check(block: Block, folder: Path) -> None:
        text = (REPOSITORY / "tests" / test).read_text(encoding="utf-8")
        assert Path(block.page).stem in text, f"{test} does not read {block.page}"

    return check


def check_generated(block: Block, folder: Path) -> None:
    """Check a block of `python -m tools.reference`; `test_reference.py` checks its examples."""
    text = (REPOSITORY / block.page).read_text(encoding="utf-8")
    above = "\n".join(text.splitlines()[: block.line])
    assert above.rfind("<!-- made by tools.reference") > above.rfind("<!-- end of")


def of_text(check: Callable[[str], None]) -> Callable[[Block, Path], None]:
    return lambda block, folder: check(block.text)


def of_block(check: Callable[[Block], None]) -> Callable[[Block, Path], None]:
    return lambda block, folder: check(block)


def as_python(block: Block, folder: Path) -> None:
    """Check code shown as text because it omits names that it uses."""
    check_python(block)


class Rule(NamedTuple):
    """The blocks that a check applies to: patterns for page and language, and first words."""

    page: str
    language: str
    check: Callable[[Block, Path], None]
    begins: str = ""

    def knows(self, block: Block) -> bool:
        fits = fnmatch.fnmatchcase(block.page, self.page)
        fits = fits and fnmatch.fnmatchcase(block.language, self.language)
        return fits and block.text.startswith(self.begins)


RULES = (
    # Pages that a test runs from the first block to the last one
    Rule("docs/tutorial.md", "*", covered_by("docs/test_tutorial.py")),
    Rule("docs/guides/writing-a-backend.md", "sh", of_text(check_shell)),
    Rule("docs/guides/writing-a-backend.md", "*", covered_by("backends/test_writing_a_backend.py")),
    # Generated from code, and checked there
    Rule("docs/reference/config.md", "yaml", check_generated),
    # Third-party files
    Rule("docs/guides/ci.md", "yaml", check_hooks, "repos:"),
    Rule("docs/guides/scaling.md", "yaml", check_kubernetes, "apiVersion:"),
    # Our files that aren't configs
    Rule("docs/guides/*", "yaml", check_target, "kernels:"),
    Rule("docs/guides/*transformers*.md", "yaml", check_model_source, "transformers:"),
    Rule(
        "docs/guides/from-transformers-to-an-index.md",
        "yaml",
        covered_by("features/publish/test_from_transformers.py"),
    ),
    Rule("docs/guides/*", "yaml", check_target, "devices:"),
    Rule("docs/guides/baselines.md", "yaml", check_baseline, "# The accepted figures"),
    # What `test_blocks_run.py` prints again
    Rule("docs/guides/configs.md", "", covered_by("docs/test_blocks_run.py"), "# asr-small-int8:"),
    # Calls to generated code
    Rule("docs/guides/apps/cpp.md", "cpp", covered_by("features/call_sites/test_cpp.py")),
    # Languages
    Rule("*", "yaml", check_configs),
    Rule("*", "toml", of_block(check_toml)),
    Rule("*", "python", of_block(check_python)),
    Rule("*", "sh", of_text(check_shell)),
    Rule("*", "json", of_text(check_json)),
    Rule("*", "cpp", check_cpp),
    Rule("*", "kotlin", of_block(check_app)),
    Rule("*", "swift", of_block(check_app)),
    Rule("*", "typescript", of_block(check_app)),
    # Blocks to read, not to type
    Rule("docs/guides/language-models.md", "text", as_python, "def "),
    Rule("docs/concepts/cache.md", "", check_names, "blobs/"),
    Rule("docs/reference/reports.md", "", check_names, "build/"),
    Rule("docs/guides/models.md", "", check_names, "shop/"),
    Rule("docs/*", "", of_text(check_output)),
)


def find_rule(block: Block) -> Rule | None:
    return next((rule for rule in RULES if rule.knows(block)), None)


@pytest.mark.parametrize("block", ALL, ids=[block.place for block in ALL])
def test_block_is_checked(block, tmp_path):
    rule = find_rule(block)
    assert rule is not None, f"{block.place}: no test knows what a block of {block.language} is"
    rule.check(block, tmp_path)


def test_every_rule_has_a_block():
    used = {id(find_rule(block)) for block in ALL}
    assert [rule for rule in RULES if id(rule) not in used] == []


def test_every_page_is_read():
    text = {page: (REPOSITORY / page).read_text(encoding="utf-8") for page in {b.page for b in ALL}}
    for page, content in text.items():
        fences = len(re.findall(r"^ *(?:```|~~~)", content, re.MULTILINE))
        assert fences == 2 * len(read_blocks(page)), page


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/contributing.md"])
def test_a_page_that_begins_with_an_installation_takes_torch_for_cpus(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    first = text.index("pip install")
    index = "--extra-index-url" + text[first:].partition("--extra-index-url")[2][:60]
    assert "https://download.pytorch.org/whl/cpu" in index


_INLINE = re.compile(r"(?<!`)`(?:doit|pte) ([^`]+)`(?!`)")
_EVERYWHERE = {"--help", "-h", "--version"}


def check_inline_commands(text: str) -> None:
    """Check that the commands in a page's sentences and their options exist."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for command in _INLINE.findall(prose):
        check_doit([word for word in shlex.split(command) if word not in _EVERYWHERE])


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page):
    check_inline_commands((REPOSITORY / page).read_text(encoding="utf-8"))


# The checks can fail


def test_a_wrong_command_in_a_sentence_is_seen():
    check_inline_commands("Run `doit diff\nmain --markdown`, or `doit --help`.")
    for command in ("doit dif main --markdown", "doit diff main --markdwon"):
        with pytest.raises(AssertionError, match="has no option"):
            check_inline_commands(f"Run `{command}`.")


def block_of(language, text, page="docs/x.md"):
    (block,) = split_blocks(page, f"```{language}\n{text}\n```\n")
    return block


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("yaml", "model: m\nmethods: {a: {partitioners: [xnpack]}}"),
        ("yaml", "validate: {gate: {max_size: 1}}"),
        ("yaml", "emit: {external_weights: true}\nemit: {external_weigths: true}"),
        ("toml", "[tool.pte-pipeline]\nstores = 'x'"),
        ("toml", "[project.entry-points.'pte_pipeline.backend']\nx = 'a:B'"),
        ("kotlin", 'Module.loadFile("vision.pte")'),
        ("swift", 'Module(filePath: "vision.pte"'),
        ("typescript", "vision.run('classify', [image])"),
        ("python", "from pipeline import load_packages"),
        ("python", "import pipelines"),
        ("python", "print("),
        ("sh", "doit plan --resolve vision"),
        ("sh", "doit lower --job 3"),
        ("sh", "PTE_PIPELINE_STOER=x doit"),
        ("sh", "pip install -e '.[gallerie]'"),
        ("sh", "frobnicate x"),
        ("sh", "python -m pipeline.nowhere"),
        ("json", "{'a': 1}"),
        ("", "$ doit lowr --x\nfine"),
        ("", "the package grew like never before in its long life"),
        ("fortran", "x"),
    ],
)
def test_what_is_wrong_is_seen(language, text, tmp_path):
    block = block_of(language, text)
    rule = find_rule(block)
    if rule is not None:
        with pytest.raises((AssertionError, SyntaxError, ValueError, TypeError)):
            rule.check(block, tmp_path)


def test_options_of_doit_are_known():
    check_doit(["lower", "vision", "-n", "4", "-a"])
    check_doit(["clean", "--orphans"])
    with pytest.raises(AssertionError, match="has no option"):
        check_doit(["diff", "main", "--markdwon"])
