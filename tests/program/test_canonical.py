"""The canonical program: every change counts except to names, symbols and volatile metadata."""

import copy
import io
import json
import random
import re
import zipfile

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim, export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.config.emission import EmitConfig
from pipeline.program.archive import load_program, save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.canonical import (
    VOLATILE_METADATA,
    _with_numbered_symbols,
    canonical_program,
    summarize_parts,
)
from pipeline.store.digest import canonical_json, hash_json
from tests.support.programs import shared_programs


class Varied(torch.nn.Module):
    """A parameter, a mutable buffer, a constant, a branch, a dynamic size, all kinds of scalars."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.offset = torch.ones(4)

    def forward(self, x, *, scale):
        self.count.add_(1)
        y = torch.nn.functional.leaky_relu(self.linear(x), 0.2) * scale + self.count
        z = torch.cond(y.sum() > 0, lambda a: a + 1, lambda a: a - self.offset, (y,))
        return {"z": z.reshape(x.shape[0] * 4), "mean": y.mean(0, keepdim=True)}


def varied():
    rows = Dim("rows", min=2, max=64)
    return export(
        Varied().eval().requires_grad_(False),
        (torch.ones(4, 4),),
        {"scale": torch.ones(4)},
        dynamic_shapes={"x": {0: rows}, "scale": None},
    )


def archive(programs):
    buffer = io.BytesIO()
    save_programs(programs, buffer)
    return buffer.getvalue()


def serialized(program):
    with zipfile.ZipFile(io.BytesIO(archive({"m": program}))) as members:
        name = next(n for n in members.namelist() if n.endswith("models/m.json"))
        return json.loads(members.read(name))


PROGRAM = serialized(varied())


def digest(program):
    return hash_json(canonical_program(program).program)


def leaves(value, path=()):
    """Yield the path of every value that isn't a container."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


def mutated(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else "x"


LEAVES = [
    path
    for path in leaves(PROGRAM)
    if not VOLATILE_METADATA.intersection(path) and path != ("torch_version",)
]


def set_leaf(program, path):
    *outer, last = path
    for step in outer:
        program = program[step]
    program[last] = mutated(program[last])


def _is_a_name(path):
    """Return whether a leaf names a value: changing one of several mentions changes the wiring, and
    changing the only mention changes nothing."""
    return path[-1] in ("name", "as_name", "user_input_name")


@settings(max_examples=120)
@given(st.sampled_from([path for path in LEAVES if not _is_a_name(path)]))
def test_every_field_counts(path):
    changed = copy.deepcopy(PROGRAM)
    set_leaf(changed, path)
    assert digest(changed) != digest(PROGRAM)


@pytest.mark.parametrize("argument", ["self", "weight", "bias", "other"])
def test_wiring_counts(argument):
    """One argument comes from another value of the same shape."""
    changed = copy.deepcopy(PROGRAM)
    for node in changed["graph_module"]["graph"]["nodes"]:
        for each in node["inputs"]:
            if each["name"] == argument and "as_tensor" in each["arg"]:
                now = each["arg"]["as_tensor"]["name"]
                each["arg"]["as_tensor"]["name"] = "scale" if now != "scale" else "b_count"
                assert digest(changed) != digest(PROGRAM)
                return
    pytest.fail(f"no argument {argument}")


def test_which_sizes_are_the_same_counts():
    class Both(torch.nn.Module):
        def forward(self, a, b):
            return a + 1, b + 1

    shapes = ({0: Dim("n", min=2, max=64)}, {0: Dim("m", min=2, max=64)})
    program = serialized(export(Both(), (torch.ones(4), torch.ones(5)), dynamic_shapes=shapes))
    sizes = [
        tensor["sizes"][0]["as_expr"]
        for tensor in program["graph_module"]["graph"]["tensor_values"].values()
    ]
    first, other = sorted({size["expr_str"] for size in sizes})
    before = digest(program)
    next(size for size in sizes if size["expr_str"] == other)["expr_str"] = first
    assert digest(program) != before


@pytest.mark.parametrize("where", ["inputs", "outputs", "nodes"])
def test_order_counts(where):
    changed = copy.deepcopy(PROGRAM)
    changed["graph_module"]["graph"][where].reverse()
    assert digest(changed) != digest(PROGRAM)


def renamed(program, rename, inside="graph_module"):
    """Return the program with every value name, in every graph, replaced."""

    def walk(value, path=()):
        if isinstance(value, list):
            return [walk(inner, path) for inner in value]
        if not isinstance(value, dict):
            return value
        if "graph" in value and "name" in value:
            return {"name": rename(value["name"]), "graph": walk(value["graph"])}
        result = {}
        for key, inner in value.items():
            single = key == "name" and len(value) == 1
            node = key == "name" and "target" in value
            if (single or node or key in ("as_name", "user_input_name")) and isinstance(inner, str):
                result[key] = rename(inner)
            elif key.endswith("_values") and isinstance(inner, dict):
                items = [(rename(name), walk(each)) for name, each in inner.items()]
                random.Random(0).shuffle(items)
                result[key] = dict(items)
            else:
                result[key] = walk(inner)
        return result

    module = program["graph_module"]
    return {
        **program,
        "graph_module": {
            **module,
            "graph": walk(module["graph"]),
            "signature": walk(module["signature"]),
        },
    }


@settings(max_examples=25)
@given(st.integers(min_value=0, max_value=10**6))
def test_names_of_values_do_not_count(seed):
    numbers: dict[str, int] = {}

    def rename(name):
        return f"v{seed + numbers.setdefault(name, len(numbers)) * 7}"

    other = renamed(PROGRAM, rename)
    assert other != PROGRAM
    assert digest(other) == digest(PROGRAM)
    assert canonical_program(other).names != canonical_program(PROGRAM).names


def test_names_that_a_backend_might_take_count():
    assert digest(renamed(PROGRAM, lambda name: f"{name}_fused_bn")) != digest(PROGRAM)


def test_symbols_count_by_their_first_use_and_range():
    text = json.dumps(PROGRAM)
    symbol = next(iter(PROGRAM["range_constraints"]))
    other = json.loads(text.replace(f"Symbol('{symbol}'", "Symbol('s0'"))
    other["range_constraints"] = {"s0": {**PROGRAM["range_constraints"][symbol]}}
    assert digest(other) == digest(PROGRAM)
    other["range_constraints"]["s0"]["max_val"] += 1
    assert digest(other) != digest(PROGRAM)


@pytest.mark.parametrize("varies", [True, False])
def test_the_text_has_all_symbols_numbered(varies):
    """Those of a program of fixed sizes, too, which has none."""
    program = PROGRAM if varies else serialized(export(torch.nn.ReLU(), (torch.ones(4),)))
    assert (b'"expr_str"' in canonical_json(program)) == varies
    canonical = canonical_program(program)
    assert canonical.text == canonical_json(_with_numbered_symbols(canonical.program))


def test_volatile_metadata_and_the_writer_do_not_count():
    other = copy.deepcopy(PROGRAM)
    other["torch_version"] = "1.2.3"
    for node in other["graph_module"]["graph"]["nodes"]:
        node["metadata"]["stack_trace"] = "elsewhere"
    assert digest(other) == digest(PROGRAM)


def test_parts_tell_which_module_and_tensor():
    canonical = canonical_program(PROGRAM)
    parts = summarize_parts(canonical, {"weights": {"linear.weight": {"content": 1}}})
    assert set(parts["tensors"]) == {"linear.weight"}
    assert "linear" in parts["modules"]
    changed = copy.deepcopy(PROGRAM)
    for node in changed["graph_module"]["graph"]["nodes"]:
        if node["target"].endswith("leaky_relu.default"):
            node["inputs"][1]["arg"] = {"as_float": 0.3}
    other = summarize_parts(canonical_program(changed), {})
    modules = {n for n, short in parts["modules"].items() if other["modules"][n] != short}
    assert modules == {""}
    assert parts["ranges"] == other["ranges"]


class Twice(torch.nn.Module):
    """A module that is called twice, and another one like it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.other(self.shared(self.shared(x)))


def test_strict_export_names_objects_by_their_ids_which_do_not_count():
    models = [Twice().requires_grad_(False) for _ in range(2)]  # both alive, so their ids differ
    one, two = (serialized(export(m, (torch.ones(4),), strict=True)) for m in models)
    stacks = [
        [node["metadata"]["nn_module_stack"] for node in program["graph_module"]["graph"]["nodes"]]
        for program in (one, two)
    ]
    assert stacks[0] != stacks[1]
    assert canonical_program(one).program == canonical_program(two).program
    first, second, third = (
        node["metadata"]["nn_module_stack"].split(";")[1].split(",")[0]
        for node in canonical_program(one).program["graph_module"]["graph"]["nodes"]
    )
    assert (first, second) == ("object 0", "object 0@1")  # identity still counts
    assert third == "object 1"


def test_addresses_of_the_functions_that_strict_export_calls_do_not_count():
    class Normalized(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.layer_norm(torch.nn.functional.relu(x), (4,))

    program = serialized(export(Normalized(), (torch.ones(4),), strict=True))
    text = json.dumps(program)
    moved = json.loads(re.sub(" at 0x([0-9a-f]+)", r" at 0x7\1", text))
    assert text.count("<function relu at 0x") and moved != program
    names = canonical_program(program).names
    assert canonical_program(moved).names == names
    renamed = json.loads(text.replace("<function relu at ", "<function other at "))
    assert canonical_program(renamed).names != names


def reclassed(program, rename):
    """Return the program with the type of every module replaced."""
    other = copy.deepcopy(program)
    graphs = [other["graph_module"]["graph"]]
    while graphs:
        for node in graphs.pop()["nodes"]:
            if stack := node["metadata"].get("nn_module_stack"):
                parts = [each.rpartition(",") for each in stack.split(";")]
                renamed = [f"{head},{rename(kind)}" for head, _, kind in parts]
                node["metadata"]["nn_module_stack"] = ";".join(renamed)
            arguments = [each["arg"] for each in node["inputs"]]
            graphs += [each["as_graph"]["graph"] for each in arguments if "as_graph" in each]
    return other


def _own(kind):
    return kind if kind.startswith(("torch.", "_empty")) else f"renamed.{kind}s"


def test_names_of_classes_but_for_torchs_count_as_names():
    other = reclassed(PROGRAM, _own)
    assert "renamed.tests.program.test_canonical.Varieds" in json.dumps(other)
    assert digest(other) == digest(PROGRAM)
    assert canonical_program(other).names != canonical_program(PROGRAM).names
    assert digest(reclassed(PROGRAM, lambda kind: f"{kind}s")) != digest(PROGRAM)  # torch's too


@pytest.mark.parametrize("kind", ["torch.nn.modules.linear.Linear", "Linear", "class.0", "class"])
def test_which_classes_are_one_and_which_are_torchs_counts(kind):
    """No type that code may look for is mistaken for another, whatever an archive says."""
    twins = serialized(export(Twins().eval(), (torch.ones(4),)))
    here = f"{__name__}."
    assert digest(reclassed(twins, _own)) == digest(twins)
    one = reclassed(twins, lambda k: kind if k == f"{here}One" else k)
    assert (digest(one) == digest(twins)) is (kind == "class.0")
    same = reclassed(twins, lambda k: f"{here}One" if k == f"{here}Other" else k)
    assert digest(same) != digest(twins)


class One(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Other(One):
    pass


class Twins(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = One(), Other()

    def forward(self, x):
        return self.other(self.one(x))


def _rewritten(source, target):
    """Write the archive with the names of all values and of all classes but torch's replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            if "/models/" in member:
                other = renamed(json.loads(data), lambda n: f"zz_{n}_9")
                data = json.dumps(reclassed(other, _own)).encode()
            new.writestr(member, data)


@pytest.mark.parametrize(
    "partitioners",
    [pytest.param([], marks=pytest.mark.slow), [XnnpackPartitioner()]],
    ids=["portable", "xnnpack"],
)
def test_programs_that_differ_in_names_give_the_same_bytes(tmp_path, partitioners):
    """This experiment justifies leaving names out: emitted files don't contain them."""
    programs = {**shared_programs(), "varied": varied()}
    if partitioners:
        del programs["branch"]  # XNNPACK doesn't lower a linear layer in a branch
        del programs["varied"]
    first, second = tmp_path / "a.pt2", tmp_path / "b.pt2"
    first.write_bytes(archive(programs))
    _rewritten(first, second)
    packages = []
    for path in (first, second):
        loaded = {name: load_program(path, name) for name in programs}
        lowered = lower(loaded, dict.fromkeys(programs, partitioners))
        packages.append(bytes(emit(lowered, EmitConfig(initialized_buffers=["count"])).buffer))
    names = [
        {node.name for node in load_program(path, "plain").graph.nodes} for path in (first, second)
    ]
    assert names[0].isdisjoint(names[1] - {"output"})
    assert packages[0] == packages[1]
    one, two = (describe_archive(path).programs for path in (first, second))
    assert [each.program for each in one] == [each.program for each in two]
    assert all(a.names != b.names for a, b in zip(one, two, strict=True))
