"""Completions on Tab, and what they import."""

import json
import shutil
import subprocess
import sys

import pytest

from pipeline.features.help.candidates import find_candidates
from pipeline.features.help.pages import find_page
from pipeline.features.help.scripts import SCRIPTS, run
from pipeline.store.errors import PipelineError
from pte_pipeline.command_line import main
from tests.support.bench import REPOSITORY, bench_of
from tools.reference.key_data import FILE, make_key_data


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A workspace with the package `pair`, whose methods are `encode` and `decode`."""
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    return bench_of("pair", tmp_path).root


@pytest.mark.parametrize(
    ("before", "last", "words"),
    [
        ("", "pl", "plan"),
        ("", "pai", "pair"),
        ("", "pair/", "pair/decode pair/encode"),
        ("lower", "", "pair"),
        ("lower -n 2", "p", "pair"),
        ("validate pair", "pair/e", "pair/encode"),
        ("report", "pair/", ""),
        ("export", "", "pair"),
        ("lower", "--f", "--fail-fast"),
        (
            "lower",
            "-",
            "-a --allow --fail-fast -h --help -j --jobs -k --last-failed -n -q --quiet -v -x",
        ),
        ("plan", "--res", "--resolved"),
        ("completion", "", "bash fish zsh"),
        ("help", "validate.ato", "validate.atol"),
        ("cache", "p", ""),
    ],
)
def test_what_may_follow_is_offered(root, before, last, words):
    candidates = find_candidates(before.split(), last, root)
    offered = [word for word in candidates if word.startswith(last)]
    assert sorted(offered, key=lambda word: word.strip("-")) == words.split()
    assert all(candidates[word] for word in offered)


def test_outside_of_a_workspace_commands_are_offered(root):
    assert "init" in find_candidates([], "", None)
    assert find_candidates(["lower"], "", None) == {}
    (root / "pyproject.toml").write_text("[tool.pte-pipeline]\nnonsense = 1\n")
    assert find_candidates(["lower"], "", root) == {}


def test_a_tab_imports_neither_torch_nor_doit(root):
    code = (
        "import sys\nfrom pte_pipeline.command_line import main\n"
        "sys.argv = ['pte', '_complete', 'lower', 'p']\nstatus = main()\n"
        "print(status, {'torch', 'doit', 'joblib', 'jinja2', 'rich'} & {*sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout == "pair\ta package\n0 set()\n", done.stderr


def test_the_keys_are_those_of_configs():
    text = FILE.read_text(encoding="utf-8")
    assert text == make_key_data(), "run `python -m tools.reference`"
    assert all(all(facts.values()) or not facts["example"] for facts in json.loads(text).values())


def test_a_key_has_a_page():
    page = find_page(["validate.atol"], "pte")
    assert page[0].startswith("validate.atol: ") and page[-1].startswith("example: validate: ")
    assert find_page(["methods.decode.partitioners"], "pte")[0].startswith("methods.<method>.part")
    assert find_page(["max_size"], "pte")[0].startswith("validate.gates.max_size: ")
    assert find_page(["min_sqnr"], "pte")[0].startswith("validate.min_sqnr: ")
    assert "validate.gates.max_size," in " ".join(find_page(["validate.gates"], "pte"))
    assert find_page(["nonsense"], "pte") is None


def test_each_shell_has_a_script(tmp_path, capsys):
    assert run(["fish"], tmp_path) == 0 and "complete -c pte" in capsys.readouterr().out
    with pytest.raises(PipelineError, match="no script for 'sh'; did you mean 'zsh'"):
        run(["sh"], tmp_path)


_ASK = {
    "bash": "{script}\nCOMP_WORDS=(pte lower p) COMP_CWORD=2; _pte_complete; "
    "echo ${{COMPREPLY[@]}}",
    "zsh": "compdef() {{ }}; _describe() {{ echo ${{(P)3}} }}\n{script}\n"
    "words=(pte lower p) CURRENT=3; _pte_complete",
    "fish": "{script}\ncomplete -C 'pte lower p'",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "line"),
    [("bash", "pair\n"), ("zsh", "pair:a package\n"), ("fish", "pair\ta package\n")],
)
def test_a_shell_completes_a_package(root, tmp_path, shell, line):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "bin" / "pte"
    program.parent.mkdir()
    start = f"sys.path.insert(0, {str(REPOSITORY)!r}); from {main.__module__} import main"
    program.write_text(f"#!{sys.executable}\nimport sys; {start}\nsys.exit(main())\n")
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    done = subprocess.run(
        [shell, "-c", _ASK[shell].format(script=SCRIPTS[shell])],
        cwd=root,
        env={"PATH": path, "HOME": str(tmp_path), "PTE_PIPELINE_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == line, done.stderr
