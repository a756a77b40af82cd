"""Bad input: each mistake is a clear error, other packages are still built, nothing is lost."""

import json
import os
import re
import zipfile

import pytest
import torch

from tests.support.bench import Bench, bench_of
from tests.support.patches import PARTITIONER, PREPROCESS, patched

pytestmark = pytest.mark.slow

GOOD = "model: pair\nmethods:\n  encode: {partitioners: []}\n  decode: {partitioners: []}\n"


def exporter(body: str) -> str:
    return (
        "import torch\nfrom torch.export import export\n"
        "class M(torch.nn.Module):\n    def forward(self, x): return x + 1\n"
        "program = lambda: export(M(), (torch.ones(2),))\n" + body
    )


def config(model, *methods):
    lines = [
        f"model: {model}",
        "methods:",
        *(f"  {name}: {{partitioners: []}}" for name in methods),
    ]
    return "\n".join(lines) + "\n"


def rewrite(path, change):
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, change(name, data))


def another_torch(name, data):
    if not name.endswith("models/encode.json"):
        return data
    return json.dumps(
        {**json.loads(data), "torch_version": "3.1.0", "schema_version": {"major": 99, "minor": 0}}
    ).encode()


# The mistake in each package's config or source, and the one-line message it must cause.
PLANNED = {
    "no_model": (config("absent", "forward"), "no_model.yaml:1: model: no model 'absent'; known: "),
    "truncated": (config("truncated", "encode", "decode"), "truncated.pt2: "),
    "ambiguous": (config("twice", "encode", "decode"), "model 'twice' has 2 sources"),
    "unknown_partitioner": (
        GOOD.replace("[]", "[xnpack]", 1),
        "unknown_partitioner.yaml:3: methods.encode.partitioners[0]: ",
    ),
    "unknown_option": (
        GOOD.replace("[]", "[xnnpack: {per_op: true}]", 1),
        "unknown_option.yaml:3: methods.encode.partitioners[0].xnnpack",
    ),
    "leaves_out": (config("one", "encode"), "lacks 'decode', a method of the model"),
    "lacks": (
        config("one", "encode", "decode", "embed"),
        "methods.embed: is not a method of the model",
    ),
    "no_model_either": (
        config("absent", "forward").replace("[]", "[xnpack]"),
        "no_model_either.yaml:1: model: no model 'absent'; known: ",
    ),
    "lacks_too": (
        config("one", "encode", "decode", "embed").replace("[]", "[xnpack]", 1),
        "methods.embed: is not a method of the model",
    ),
    "lacks_a_module": (
        config("one", "encode", "decode").replace("[]", "[], quantize: {modules: {hed: none}}", 1),
        "methods.encode.quantize.modules: no module 'hed' in the program",
    ),
    "escapes": (
        "model: ../../pair\nmethods:\n  encode: {partitioners: []}\n",
        "escapes.yaml:1: model: ",
    ),
    "not_yaml": ("model: [", "not_yaml.yaml"),
    "pipe": (config("pipe", "f"), "models/pipe.pt2: cannot be read (It is not a regular file)"),
    "pipe_inside": (config("pipe_inside", "x"), "pipe_inside/x.pt2: cannot be read (It is no"),
    "folder": (config("folder", "f"), "models/folder.pt2: cannot be read (Is a directory)"),
    "empty": (config("empty", "f"), "models/empty.pt2: is not a readable PT2 archive"),
    "saved": (config("saved", "f"), "models/saved.pt2: is not a PT2 archive, or is truncated"),
    "old": (config("old", "f"), "models/old.pt2: is not a readable PT2 archive"),
    "bomb": (config("bomb", "f"), "models/bomb.pt2: 'x/archive_format' is compressed"),
    "code": (config("code", "encode", "decode"), "models/code.pt2: 'encode' is refused: graph_mod"),
    "another_torch": (
        config("another_torch", "encode", "decode"),
        "'encode' was written by torch 3.1.0 (schema 99.0), and this is torch 2.13",
    ),
    "gone_archive": (
        config("gone_archive", "encode"),
        "gone_archive.yaml:1: model: models/gone_archive.pt2: cannot be read (No such file",
    ),
    "gone_in_folder": (
        config("gone_in_folder", "encode"),
        "gone_in_folder.yaml:1: model: gone_in_folder/encode.pt2: cannot be read (No such file",
    ),
    "gone_exporter": (
        config("gone_exporter", "forward"),
        "gone_exporter.yaml:1: model: models/gone_exporter.py: cannot be read (No such file",
    ),
    "circular_archive": (
        config("circular_archive", "encode"),
        "circular_archive.yaml:1: model: models/circular_archive.pt2: cannot be read (Too many",
    ),
    "gone_config": (None, "gone_config.yaml: cannot be read"),
    "circular_config": (None, "circular_config.yaml: cannot be read"),
}

# Dangling links, as in a checkout without its large files.
LINKS = {
    "models/gone_archive.pt2": "nowhere.pt2",
    "models/gone_in_folder/encode.pt2": "nowhere.pt2",
    "models/gone_exporter.py": "nowhere.py",
    "models/circular_archive.pt2": "circular_archive.pt2",
    "partition_configs/gone_config.yaml": "nowhere",
    "partition_configs/circular_config.yaml": "circular_config.yaml",
}


def of_code(name, data):
    if not name.endswith("models/encode.json"):
        return data
    return data.replace(b'"torch.ops.aten.', b'"torch.os.system.')


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("x/archive_format", "pt2")
        members.writestr("x/data/weights/weight_0", bytes(1 << 24))


# Code that writes invalid archives.
ARCHIVES = {
    "pipe": os.mkfifo,
    "pipe_inside/x": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "saved": lambda path: torch.save({"x": torch.ones(3)}, path),
    "old": lambda path: torch.save([torch.ones(3)], path, _use_new_zipfile_serialization=False),
    "bomb": bomb,
}

# Mistakes that only running reveals, and the stage in which they appear.
RUN = {
    "raises": ("def export_methods(): raise ValueError('no weights here')", "no weights here"),
    "returns": ("def export_methods(): return [program()]", "export_methods() returned list"),
    "nameless": (
        "def export_methods(): return {'a/b': program()}",
        "cannot name a method: 'a/b' must",
    ),
    "lacks_function": ("", "has no function export_methods()"),
    "exits": ("import sys\nsys.exit(0)", "SystemExit"),
    "syntax": ("def :", "SyntaxError"),
    "mismatch": (
        "def export_methods(): return {'forward': program()}\n"
        "def example_inputs(method): return [(torch.ones(3),)]",
        "argument 'x': size 3 at dimension 0, must be 2",
    ),
    "dies": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "process died"),
}


@pytest.fixture(scope="module")
def ruined(tmp_path_factory):
    """Run once over a workspace with every mistake above and two good packages."""
    bench = bench_of("archives", tmp_path_factory.mktemp("bad"))
    models, configs = bench.root / "models", bench.root / "partition_configs"
    one = (models / "one.pt2").read_bytes()
    (models / "truncated.pt2").write_bytes(one[: len(one) // 2])
    (models / "twice.pt2").write_bytes(one)
    (models / "twice.py").write_text("")
    (models / "another_torch.pt2").write_bytes(one)
    rewrite(models / "another_torch.pt2", another_torch)
    (models / "code.pt2").write_bytes(one)
    rewrite(models / "code.pt2", of_code)
    (models / "gone_in_folder").mkdir()
    (models / "pipe_inside").mkdir()
    for name, write in ARCHIVES.items():
        write(models / f"{name}.pt2")
    for name, target in LINKS.items():
        (bench.root / name).symlink_to(target)
    for name, (text, _) in PLANNED.items():
        if text is not None:
            (configs / f"{name}.yaml").write_text(text)
    for name, (body, _) in RUN.items():
        (models / f"{name}.py").write_text(exporter(body))
        (configs / f"{name}.yaml").write_text(config(name, "forward"))
    code = bench.process(timeout=500)  # one of the exporters ends its process
    return bench, code


def test_the_run_fails_and_the_good_packages_are_built(ruined):
    bench, code = ruined
    assert code == 1
    outcomes = bench.outcomes()
    assert outcomes["validate one"] == outcomes["validate many"] == "built"
    assert (bench.root / "build" / "one" / "one.pte").stat().st_size > 0
    assert "Traceback" not in bench.output


@pytest.mark.parametrize("name", PLANNED)
def test_mistake_that_the_plan_finds_runs_nothing_of_its_package(ruined, name):
    bench, _ = ruined
    outcomes = bench.outcomes()
    assert outcomes[f"link {name}"] == "failed"
    assert [key for key in outcomes if f" {name}/" in key] == []
    assert PLANNED[name][1] in bench.output


def test_plan_tells_each_mistake_on_a_line(ruined):
    bench = Bench(ruined[0].root)
    assert bench.doit("plan") == 1
    assert "Traceback" not in bench.output
    for name, (_, words) in PLANNED.items():
        lines = [line for line in bench.output.splitlines() if words in line]
        assert lines and all(" faulty " in line for line in lines), name


@pytest.mark.parametrize("name", RUN)
def test_mistake_that_a_run_finds_is_told_with_its_log(ruined, name):
    bench, _ = ruined
    outcomes = bench.outcomes()
    assert outcomes[f"export {name}"] == "failed"
    assert outcomes[f"link {name}"] == "not-run"
    action = next(a for a in bench.actions() if a["kind"] == "export" and a["model"] == name)
    assert RUN[name][1] in action["error"]
    assert re.search(rf"^export:{name} failed.*: ", bench.output, re.MULTILINE)
    if name != "dies":
        assert "Traceback" in (bench.root / action["log"]).read_text()


def test_exporter_that_cannot_be_read_fails_in_one_line(bench):
    workspace = bench("pair")
    (workspace.root / "models" / "pair.py").unlink()
    (workspace.root / "models" / "pair.py").symlink_to("nowhere.py")
    for command in (["export"], ["lower"], ["info", "export:pair"], ["explain", "pair"]):
        assert workspace.doit(*command) == 1
        assert "models/pair.py: cannot be read (No such file or directory)" in workspace.output
        assert "Traceback" not in workspace.output


def test_every_mistake_of_a_config_is_told_at_once(bench):
    workspace = bench("archives")
    (workspace.root / "partition_configs" / "bad.yaml").write_text(
        "model: one\ntargt: x\nmethods:\n"
        "  encode: {partitioners: [nope]}\n"
        "  decode: {partitioner: []}\n"
        "validate: {atol: -1}\n"
    )
    assert workspace.doit("lower:bad") == 1
    lines = [line for line in workspace.output.splitlines() if "bad.yaml:" in line]
    for words in ("targt", "nope", "partitioner'", "is missing", "atol"):
        assert any(words in line for line in lines), (words, workspace.output)


def test_name_that_is_no_package_name_is_told(bench):
    workspace = bench("archives")
    (workspace.root / "partition_configs" / "a=b.yaml").write_text(GOOD)
    (workspace.root / "partition_configs" / ".hidden.yaml").write_text("")
    assert workspace.doit() == 1
    assert "a=b.yaml: cannot name a package" in workspace.output
    assert workspace.outcomes()["validate one"] == "built"


@pytest.mark.parametrize(
    ("module", "patch", "words"),
    [
        (
            PARTITIONER,
            "def bad(self, program): raise ValueError('partitioner is out of order')\n"
            "XnnpackPartitioner.partition = bad",
            "partition XnnpackBackend: ValueError: partitioner is out of order",
        ),
        (
            PREPROCESS,
            "def bad(program, specs): raise ValueError('preprocess is out of order')\n"
            "XnnpackBackend.preprocess = staticmethod(bad)",
            "preprocess XnnpackBackend: ValueError: preprocess is out of order",
        ),
        (
            PREPROCESS,
            "def bad(program, specs): os.kill(os.getpid(), signal.SIGKILL)\n"
            "import os, signal\n"
            "XnnpackBackend.preprocess = staticmethod(bad)",
            "its worker process died",
        ),
    ],
    ids=["partitioner raises", "preprocess raises", "preprocess kills its worker"],
)
def test_backend_that_misbehaves_fails_its_method_alone(bench, tmp_path, module, patch, words):
    workspace = bench("archives")
    workspace.edit("partition_configs/many.yaml", "features:\n    partitioners: []",
                   "features:\n    partitioners: [xnnpack]")  # fmt: skip
    changes = patched(tmp_path, module, patch)
    assert workspace.doit(**changes) == 1
    outcomes = workspace.outcomes()
    assert outcomes["compile many/features"] == "failed"
    # Results that a dying worker had finished but not reported are looked up again and found.
    done = {"built", "hit"} if "SIGKILL" in patch else {"built"}
    assert {outcomes["compile many/classify"], outcomes["validate one"]} <= done
    assert outcomes["link many"] == "not-run"
    assert words in workspace.output
    # Once it behaves, only the failed actions run; code that Python runs at startup is an input.
    assert workspace.doit(PYTHONPATH=changes["PYTHONPATH"]) == 0
    assert workspace.outcomes()["compile many/classify"] == "hit"
