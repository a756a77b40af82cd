"""doit's commands in a workspace, below one, without one, and in other projects."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader

import pytest
from doit.doit_cmd import DoitMain

from pipeline.features.provenance.attestation import PROVENANCE, make_statement
from pipeline.features.provenance.envelopes import sign_statement
from pipeline.features.signing.keys import load_keys
from pte_pipeline import bytecode
from pte_pipeline.command_line import main
from tests.features.provenance.test_attestation import digests, provenance
from tests.support.bench import REPOSITORY, bench_of
from tests.support.keys import write_keys


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder for PYTHONPATH in which this package is installed with its entry points."""
    folder = tmp_path_factory.mktemp("site")
    facts = folder / "pte_pipeline-9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pte-pipeline\nVersion: 9\n")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def doit(installed, tmp_path):
    """Return a function that runs doit in a folder, and returns the exit status and the output."""

    def run(folder, *words):
        path = os.pathsep.join([str(installed), str(REPOSITORY)])
        given = {**os.environ, "PYTHONPATH": path, "PTE_PIPELINE_STORE": str(tmp_path / "store")}
        done = subprocess.run(
            [sys.executable, "-m", "doit", *words],
            cwd=folder,
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    return run


def test_an_empty_folder_becomes_a_workspace(doit, tmp_path):
    code, said = doit(tmp_path)
    assert code == 3 and "`doit init` creates a workspace for ExecuTorch packages here" in said
    code, said = doit(tmp_path, "init", "shop")
    shop = tmp_path / "shop"
    assert code == 0 and said.splitlines()[-1] == (
        "`cd shop && doit` builds the package and validates it"
    )
    code, said = doit(tmp_path, "init", "shops/my shop")
    assert code == 0 and said.splitlines()[-1].startswith("`cd 'shops/my shop' && doit` builds")
    code, said = doit(tmp_path, "init", "shop/dodo.py")
    assert code == 3 and "shop/dodo.py: is a file, not a folder" in said
    config = shop / "partition_configs" / "hello.yaml"
    assert len(config.read_text().splitlines()) == 6
    assert doit(shop, "check") == (0, "1 package: no mistakes\n")
    config.write_text(config.read_text().replace("classify:", "clasify:").replace("1MB", "1 MM"))
    code, said = doit(shop / "models", "check", "../partition_configs/hello.yaml")
    assert code == 1 and said.endswith("check: 1 of 1 package with mistakes [PTE707]\n")
    assert "partition_configs/hello.yaml:6: validate.gates.max_size: " in said
    code, said = doit(shop, "check", "hello.yaml")
    assert code == 1 and said == "check: hello.yaml: there is no such config [PTE702]\n"
    before = config.read_bytes()
    code, said = doit(shop, "init")
    assert code == 0 and "partition_configs/hello.yaml: already exists" in said
    assert config.read_bytes() == before
    code, said = doit(shop / "models", "init")
    assert code == 3 and "is already a workspace, and this folder is inside it" in said


@pytest.mark.slow
def test_the_package_of_a_new_workspace_is_built_and_validated(doit, tmp_path):
    assert doit(tmp_path, "init")[0] == 0
    code, said = doit(tmp_path / "models")
    assert code == 0, said
    assert (tmp_path / "build" / "hello" / "hello.pte").exists()


def test_doit_works_in_a_folder_below(doit, tmp_path):
    bench = bench_of("pair", tmp_path)
    code, said = doit(bench.root / "models", "plan", "pair/encode")
    assert code == 0 and said.endswith("1 to do, 1 waits\n"), said
    code, said = doit(bench.root / "partition_configs", "list", "--all")
    assert code == 0 and "lower:pair" in said


def test_help_lists_our_commands(doit, tmp_path):
    bench = bench_of("pair", tmp_path)
    listed = doit(bench.root / "models", "help")
    assert listed == doit(tmp_path, "help")
    assert listed[0] == 0 and "  doit plan            show what a run would do and why" in listed[1]
    assert max(map(len, listed[1].splitlines())) <= 100
    code, said = doit(bench.root, "help", "lower")
    assert (code, said) == doit(bench.root, "lower", "--help")
    assert "usage: doit lower [package[/method] ...]" in said and "examples:\n" in said
    code, said = doit(bench.root, "help", "lowr")
    assert code == 3 and "did you mean 'lower'?" in said
    code, said = doit(bench.root, "help", "list")
    assert code == 0 and said.startswith("list: list the tasks\n")
    code, said = doit(bench.root, "help", "strace")
    assert code == 0 and "PURPOSE" in said  # doit's original
    code, said = doit(tmp_path, "help", "lowr")
    assert code == 3 and said.startswith("ERROR: no help on 'lowr'; did you mean 'lower'?")
    code, said = doit(bench.root, "--help")  # no command of a plugin prints this
    assert code == 0 and "help              show the commands of a workspace: lower, " in said


def test_a_verb_comes_first(doit, tmp_path):
    bench = bench_of("pair", tmp_path)
    code, said = doit(bench.root, "lower", "plan")
    line = "ERROR: 'plan' is a command, so it must come first: `doit plan` [PTE705]"
    assert (code, said) == (3, f"{line}\n")
    (bench.root / "other.py").write_text("from pte_pipeline.tasks import *\n")
    (bench.root / "dodo.py").unlink()
    assert doit(bench.root, "-f", "other.py", "check") == (0, "1 package: no mistakes\n")
    code, said = doit(bench.root, "list", "-f", "other.py", "--all")
    assert code == 0 and "lower:pair" in said and "plan" not in said
    (bench.root / "run.py").write_text(
        "import doit\nfrom pte_pipeline.tasks import *\ndoit.run(globals())\n"
    )
    line = [sys.executable, "run.py", "plan", "pair/encode"]
    ended = subprocess.run(line, cwd=bench.root, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("1 to do, 1 waits\n"), ended.stderr


def test_a_project_of_others_sees_nothing_of_ours(doit, tmp_path):
    (tmp_path / "dodo.py").write_text("def task_hi():\n    return {'actions': None, 'doc': 'hi'}\n")
    assert doit(tmp_path, "list") == (0, "hi   hi\n")
    for words in (("help",), ("--help",)):
        code, said = doit(tmp_path, *words)
        lines = [line.split() for line in said.splitlines() if line.startswith("  ")]
        names = [words[1] for words in lines[: len(DoitMain.DOIT_CMDS)]]
        assert code == 0 and names == sorted(each.get_name() for each in DoitMain.DOIT_CMDS)
        assert lines[len(names)][1:3] == ["help", "show"], said
        assert "show help" in said and "workspace" not in said
    for command in DoitMain.DOIT_CMDS:
        code, said = doit(tmp_path, "help", command.get_name())
        assert code == 0 and "orphans" not in said
    code, said = doit(tmp_path, "plan")
    assert code == 3 and said.startswith('ERROR: Invalid parameter: "plan".')


def test_projects_of_others_are_as_they_were(doit, tmp_path):
    """Even with tasks of the same names; of this package, only the entry point is imported."""
    (tmp_path / "dodo.py").write_text(
        "def task_init():\n"
        "    return {'actions': ['echo hello'], 'verbosity': 2}\n"
        "def task_plan():\n"
        "    return {'actions': ['echo planned'], 'verbosity': 2}\n"
        "def task_imports():\n"
        "    import sys\n"
        "    def check():\n"
        "        packages = 'pipeline', 'pte_pipeline'\n"
        "        found = {m for m in sys.modules if m.split('.')[0] in packages}\n"
        "        door = {'', '.bytecode', '.command_line', '.doit_commands', '.import_path'}\n"
        "        door.add('.name_conflict')\n"
        "        assert found == {f'pte_pipeline{name}' for name in door}, found\n"
        "    return {'actions': [check]}\n"
    )
    assert doit(tmp_path) == (0, ".  init\nhello\n.  plan\nplanned\n.  imports\n")
    assert doit(tmp_path, "init") == (0, ".  init\nhello\n")
    code, said = doit(tmp_path, "help")
    assert code == 0 and said.startswith("doit -- automation tool")
    assert doit(tmp_path, "--help") == (code, said)
    code, said = doit(tmp_path, "clean", "--orphans")
    assert code == 3 and "option --orphans not recognized" in said
    (tmp_path / "below").mkdir()
    code, said = doit(tmp_path / "below")
    assert code == 3 and said.startswith("ERROR: Could not find dodo file")
    assert not (tmp_path / "build").exists()


OWN = {"pipeline/__init__.py": "VERSION = 3\n", "pipeline/steps.py": "def run(): return 1\n"}
HIDDEN = "`import pipeline` means the package of pte-pipeline"


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_file_that_a_dodo_file_leaves_open_is_complete_in_the_end(doit, tmp_path):
    notes = 'notes = open("notes", "w")\nnotes.write("kept")\n'
    write(tmp_path, {"dodo.py": f"from pte_pipeline.tasks import *\n{notes}"})
    code, said = doit(tmp_path, "list")
    assert code == 0 and (tmp_path / "notes").read_text() == "kept", said


def test_tasks_of_another_project_may_stand_in_a_module_of_our_name(doit, tmp_path):
    """The module may have our tasks' name, with or without a dodo file in this folder."""
    task = "def task_hi():\n    return {'actions': ['echo hi'], 'verbosity': 2}\n"
    own = {**OWN, "pipeline/tasks.py": task, "dodo.py": "from pipeline.tasks import *\n"}
    write(tmp_path, own)
    assert doit(tmp_path) == (0, ".  hi\nhi\n")
    code, said = doit(tmp_path, "help")
    assert code == 0 and said.startswith("doit -- automation tool")


def test_a_workspace_with_a_module_of_our_name_works_and_is_told(doit, tmp_path):
    bench = bench_of("pair", tmp_path)
    write(bench.root, OWN)
    rename = "rename it if models or passes import it"
    warning = f"warning: pipeline/: is hidden here: {HIDDEN}; {rename} [PTE290]\n"
    told = f"{warning}1 package: no mistakes, 1 warning\n"
    for package, folder in (("pipeline", bench.root), ("pte_pipeline", bench.root / "models")):
        (bench.root / "dodo.py").write_text(f"from {package}.tasks import *\n")
        assert doit(folder, "check") == (0, told)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("from pipeline import VERSION", "cannot import name 'VERSION' from 'pipeline' ("),
        ("import pipeline; pipeline.VERSION", "module 'pipeline' has no attribute 'VERSION'; "),
        ("from pipeline.steps import run", "No module named 'pipeline.steps'; "),
    ],
)
def test_a_dodo_file_that_imports_what_our_name_hides_is_told_in_a_line(
    doit, tmp_path, line, error
):
    write(tmp_path, {**OWN, "dodo.py": f"{line}\nfrom pte_pipeline.tasks import *\n"})
    code, said = doit(tmp_path, "list")
    assert code == 3 and said.startswith(f"ERROR: dodo.py: can't be imported: {error}")
    assert said.endswith(f"{HIDDEN}, which hides pipeline/ of this workspace; rename it [PTE713]\n")
    assert len(said.splitlines()) == 1


@pytest.fixture
def pte(monkeypatch):
    """Return the program `pte`, whose changes to this process are taken back afterwards."""
    monkeypatch.setattr(DoitMain, "BIN_NAME", "doit")
    # The program changes which bytecode is trusted in its process.
    monkeypatch.setattr(SourceFileLoader, "get_data", SourceFileLoader.get_data)
    monkeypatch.setattr(bytecode, "_copied_well", ())

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pte", *words])
        return main()

    return run


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("x = 1/0", "dodo.py:2: `x = 1/0`: ZeroDivisionError: division by zero"),
        ("def task_x(:", "dodo.py:2: `def task_x(:`: SyntaxError: invalid syntax"),
        ("import helper", "helper.py:1: `y = z`: NameError: name 'z' is not defined"),
    ],
)
def test_an_error_in_a_dodo_file_is_one_line(tmp_path, monkeypatch, capsys, pte, line, error):
    dodo = f"from pte_pipeline.tasks import *\n{line}\n"
    write(tmp_path, {"dodo.py": dodo, "helper.py": "y = z\n"})
    monkeypatch.chdir(tmp_path)
    for name in ("dodo", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert pte("plan") == 3
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"ERROR: dodo.py: can't be imported: {error}")


def test_commands_that_can_not_work_here_are_not_offered(doit, tmp_path):
    """doit's `dumpdb` reads no SQLite file."""
    assert doit(tmp_path, "init")[0] == 0
    assert "dumpdb" not in doit(tmp_path, "nothing")[1]


@pytest.mark.slow
def test_a_package_is_built_beside_a_module_of_our_name(doit, tmp_path):
    """Worker processes search the workspace first for modules.

    An exporter that imports that module fails with a one-line error.
    """
    write(tmp_path, OWN)
    assert doit(tmp_path, "init")[0] == 0
    code, said = doit(tmp_path, "lower")
    assert code == 0, said
    model = tmp_path / "models" / "hello.py"
    model.write_text(f"from pipeline.steps import run\n{model.read_text()}")
    code, said = doit(tmp_path, "lower")
    assert code == 1
    line = next(each for each in said.splitlines() if "in stage 'run the exporter'" in each)
    assert f"{HIDDEN}, which hides pipeline/ of this workspace; rename it: " in line
    assert line.endswith("No module named 'pipeline.steps' [PTE200]")


def test_pte_answers_beside_a_project_of_others(tmp_path, monkeypatch, capsys, pte):
    (tmp_path / "dodo.py").write_text("def task_hi():\n    return {'actions': None}\n")
    monkeypatch.chdir(tmp_path)
    for line, status in (("help init", 0), ("--help", 0), ("init -h", 0), ("lower", 3)):
        assert pte(*line.split()) == status, line
    printed = capsys.readouterr()
    assert printed.out.count("usage: pte init [folder]") == 2 and "  pte lower   " in printed.out
    assert printed.err.startswith("ERROR: no workspace here: no dodo.py with ")
    assert not (tmp_path / "build").exists()


@pytest.mark.slow
def test_a_folder_is_verified_without_a_workspace(doit, tmp_path):
    code, said = doit(tmp_path, "verify")
    assert code == 3 and "usage: doit verify [--commit <id>] folder [public key ...]" in said
    assert doit(tmp_path, "help", "verify")[1].startswith(
        "verify: check a folder against the attest"
    )
    write_keys(tmp_path)
    (release := tmp_path / "release").mkdir()
    code, said = doit(tmp_path, "verify", "release", "key.pub")
    assert (code, said.splitlines()[0]) == (
        1,
        "verify: no attestation: no file in it is called *.intoto.jsonl",
    )
    statement = make_statement({"a.pte": digests(b"a")}, PROVENANCE, provenance()["predicate"])
    keys = load_keys(tmp_path / "key.pem", [])
    (release / "a.pte.intoto.jsonl").write_bytes(sign_statement(statement, keys))
    (release / "a.pte").write_bytes(b"a")
    code, said = doit(tmp_path, "verify", "release", "key.pub")
    assert code == 0 and "a.pte.intoto.jsonl: 1 file as attested, signed by" in said
    bench = bench_of("pair", tmp_path)
    code, said = doit(bench.root / "models", "verify", "../../release", "../../key.pub")
    assert code == 0, said
    code, said = doit(bench.root, "verfy")
    assert code == 3 and "no task 'verfy'; did you mean 'verify'?" in said


def test_ctrl_c_during_the_start_ends_without_a_traceback(bench):
    """During imports the signal ends the process; later, it exits with the signal's status."""
    code = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pte_pipeline import doit_commands\n"
        "def interrupt(*_):\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "doit_commands.{place} = interrupt\n"
        "from doit.doit_cmd import DoitMain\nraise SystemExit(DoitMain().run(['list']))\n"
    )
    root = bench("pair").root
    for place, status in (("claim_pipeline", -signal.SIGINT), ("import_module", -signal.SIGINT)):
        command = [sys.executable, "-c", code.format(place=place)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (status, "")
    later = code.replace(
        "doit_commands.{place} =",
        "from pipeline.cli import workspace_commands\nworkspace_commands.run_command =",
    )
    command = [sys.executable, "-c", later]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_second_ctrl_c_during_the_exit_ends_without_a_traceback(bench):
    """It comes while Python waits for threads, such as joblib's."""
    code = (
        "import os, signal, threading\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pte_pipeline import doit_commands\n"
        "from pipeline.cli import workspace_commands\n"
        "def interrupt():\n    main = threading.main_thread()\n"
        "    while main.is_alive():\n        main.join(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    threading.Event().wait(5)\n"
        "def interrupted(*_):\n    threading.Thread(target=interrupt).start()\n    return 130\n"
        "workspace_commands.run_command = interrupted\n"
        "from doit.doit_cmd import DoitMain\nraise SystemExit(DoitMain().run(['list']))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=bench("pair").root, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
