"""The table of ExecuTorch's parameters in docs/reference/executorch-parameters.md lists exactly
those of the wheel, and every key in it exists."""

import ast
import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import get_args, get_origin

import executorch
import pytest
from pydantic import BaseModel

from pipeline.config.models import PackageConfig
from pipeline.config.reader import partitioner_options
from pipeline.features.constructor_options.constructors import constructors
from pipeline.store.releases import RELEASES, installed_release
from tools.joint_options import (
    DOCS,
    NOT_OFFERED,
    joint_parameters,
    partitioner_parameters,
    write,
)

UNTRIED = "of a vendor's backend, which nothing here lowers to"
WHEEL = Path(next(iter(executorch.__path__)))
# Partitioners that don't belong in a catalogue.
OTHERS = {
    "AllNodePartitioner": "a helper that takes a backend's name: what `to_backend` of ours is",
    "AotiPartitioner": "the base of those for CUDA and Metal",
    "ConfigerationBasedPartitioner": "the base of XNNPACK's",
    "GroupBasedPartitioner": "a helper of partitioners",
    "CudaPartitioner": UNTRIED,
    "EnnPartitioner": UNTRIED,
    "MetalPartitioner": UNTRIED,
    "NeuropilotPartitioner": UNTRIED,
    "NeutronPartitioner": UNTRIED,
    "QnnPartitioner": UNTRIED,
    "ExamplePartitioner": "of a backend that is an example, and whose runtime no wheel has",
    "CoreAIPartitioner": UNTRIED,
    "NativePartitioner": UNTRIED,
    "WebGPUPartitioner": "Vulkan's, by another name",
    "XnnpackDynamicallyQuantizedPartitioner": "XNNPACK's with `config_precisions`",
    "XnnpackFloatingPointPartitioner": "XNNPACK's with `config_precisions`",
    "XnnpackQuantizedPartitioner": "XNNPACK's with `config_precisions`",
}


def parameters_of(target):
    """Return what an installed callable takes: the fields of a dataclass, or its parameters."""
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    # ExecuTorch's logger hides the function that it wraps.
    hidden = [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
    found = next(filter(inspect.isfunction, hidden), found)
    if dataclasses.is_dataclass(found):
        return [field.name for field in dataclasses.fields(found)]
    return [name for name in inspect.signature(found).parameters if name != "self"]


@pytest.mark.parametrize("target", joint_parameters())
def test_no_parameter_is_missing_and_none_is_gone(target):
    assert list(joint_parameters()[target]) == parameters_of(target)


def models_in(annotation):
    """Yield the models in a field's type, and whether they are nested below names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        if get_origin(annotation) is not dict or part is not get_args(annotation)[0]:
            yield from models_in(part)


def is_key(path, model):
    """Return whether a path such as `methods.<method>.edge` exists in a model."""
    first, _, rest = path.partition(".")
    if path == "recipe":
        return True  # the parser reads it
    field = model.model_fields.get(first)
    if field is None or not rest:
        return field is not None
    rest = rest.removeprefix("<method>.")
    return any(is_key(rest, each) for each in models_in(field.annotation))


def test_each_key_is_one_of_a_config():
    said = [key for keys in joint_parameters().values() for key in keys.values()]
    assert [
        key for key in said if not key.startswith(NOT_OFFERED) and not is_key(key, PackageConfig)
    ] == []
    assert not is_key("emit.nonsense", PackageConfig)
    assert not is_key("methods.<method>.edge.nonsense", PackageConfig)


def test_each_option_of_a_partitioner_is_one():
    rows = list(partitioner_parameters())
    assert len(rows) > 50
    for *_, said in rows:
        if NOT_OFFERED in said:
            continue
        _, name, option = said.split(": ")
        fields = partitioner_options(name).model_fields
        assert option in {field.alias or own for own, field in fields.items()}, said


def test_no_partitioner_of_the_wheel_is_missing():
    there = set()
    for path in (*WHEEL.glob("backends/**/*.py"), *WHEEL.glob("exir/backend/**/*.py")):
        if {"test", "tests"} & {*path.parts} or "artitioner(" not in (text := path.read_text()):
            continue
        classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
        there |= {
            each.name
            for each in classes
            if any(ast.unparse(base).endswith("Partitioner") for base in each.bases)
        }
    made = {each.target.rpartition(":")[2] for each in constructors()}
    others = set(OTHERS)
    if installed_release() == RELEASES[0]:
        others -= {"CoreAIPartitioner", "NativePartitioner", "WebGPUPartitioner"}
    assert there - made == others
    assert len(there & made) > 8 - ("mps" in installed_release().lacks)


def test_the_page_is_current():
    text = DOCS.read_text(encoding="utf-8")
    assert write(text) == text, "run `python -m tools.joint_options`"
