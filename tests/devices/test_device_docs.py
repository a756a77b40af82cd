"""The examples in the docs on packages and devices work exactly as printed."""

import re
import shutil

import pytest
import torch

from tests.support.bench import REPOSITORY, Bench
from tests.support.resident import run_python


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("documented")
    configs = [f"partition_configs/{name}.yaml" for name in ("add_sub", "add_sub-xnnpack")]
    for name in ("models/add_sub.py", *configs, "dodo.py"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    bench = Bench(root)
    assert bench.doit("lower") == 0, bench.output
    return bench


def blocks(document):
    text = (REPOSITORY / "docs" / "guides" / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "number"), [("loading-a-package.md", 5), ("writing-a-device.md", 3)]
)
def test_examples_run(workspace, document, number):
    found = blocks(document)
    assert len(found) == number
    path = {**workspace.environment, "PYTHONPATH": str(REPOSITORY)}
    done = run_python("-c", "\n".join(found), cwd=workspace.root, env=path)
    assert done.returncode == 0, done.stderr


def test_the_delegate_of_the_example_does_what_it_says():
    scope: dict = {}
    exec(blocks("writing-a-device.md")[0], scope)
    acme, handle = scope["acme"], scope["handle"]
    assert acme.execute(handle, [torch.ones(2)])[0].tolist() == [-2.0, -2.0]
    assert [t.debug_handle for t in acme.timings(handle)] == [1, 2]
    with pytest.raises(scope["DelegateError"]) as caught:
        acme.execute(handle, [torch.tensor([torch.nan])])
    assert caught.value.debug_handle == 1
    with pytest.raises(scope["DelegateError"], match="unknown instruction 'halve'"):
        acme.init(b"halve", [], {})


@pytest.mark.slow
def test_a_moved_package_is_loaded_with_its_manifest(workspace, tmp_path):
    """It is built by `doit`, so the manifest is the one that linking writes."""
    from pipeline import load_package

    shutil.copytree(workspace.root / "build" / "add_sub", tmp_path / "elsewhere")
    package = load_package(tmp_path / "elsewhere" / "add_sub.pte")
    assert package.add.has_names and repr(package.add) == "add(a, b)"
    assert package.get_version() == 1
