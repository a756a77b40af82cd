"""Replacements in torch and ExecuTorch while a worker lowers: only known functions, only during
that time, and without a trace in the results."""

import copy
import inspect
import pickle
from dataclasses import replace

import pytest
import sympy
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.verification import verifier
from torch.export import Dim, export
from torch.export import exported_program as torch_programs
from torch.fx import symbolic_trace
from torch.fx.traceback import NodeSource

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.features.speedups import patches
from pipeline.features.speedups.patch import Patch
from pipeline.features.speedups.patches import PATCHES, fast_lowering
from pipeline.features.speedups.quantizing_patches import QUANTIZING_PATCHES
from pipeline.features.xnnpack.passes import SOURCES
from pipeline.plan.plan import Plan
from pipeline.program.patching import lowers_fast, read_source
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import bench_of


def functions():
    """Return the functions that patches replace, except those that `make_torch_quick` replaces."""
    patches = (*PATCHES, *QUANTIZING_PATCHES)
    return [patch.original for patch in patches if patch.name != "Callable"]


@pytest.fixture(autouse=True)
def nothing_known():
    patches._find_usable.cache_clear()
    yield
    patches._find_usable.cache_clear()


@pytest.mark.parametrize("patch", (*PATCHES, *QUANTIZING_PATCHES), ids=lambda patch: patch.target)
def test_function_is_the_one_that_its_patch_was_written_for(patch):
    """On failure, look at what changed in the function, and fix or remove the patch."""
    assert patch.is_known


def test_functions_are_replaced_within_the_context_alone():
    before = functions()
    with fast_lowering(kind="quantize"):
        assert all(a is not b for a, b in zip(functions(), before, strict=True))
        assert lowers_fast.get()
    with fast_lowering():
        assert functions()[-len(QUANTIZING_PATCHES) :] == before[-len(QUANTIZING_PATCHES) :]
    with fast_lowering(patches=False):
        assert functions() == before and lowers_fast.get()
    assert functions() == before and not lowers_fast.get()


def test_function_of_another_release_is_left_alone_and_named_once(monkeypatch, caplog):
    other = replace(PATCHES[0], source="another")
    monkeypatch.setattr(patches, "PATCHES", (other, *PATCHES[1:]))
    before = functions()
    for _ in range(2):
        with fast_lowering(kind="quantize"):
            same = [a is b for a, b in zip(functions(), before, strict=True)]
            assert same == [True, *[False] * (len(before) - 1)]
    (record,) = caplog.records
    assert other.target in record.getMessage()


@copy.copy
def _of_many_lines(
    x=(  # with a comment: that ends so:
        1,
    ),
) -> tuple[int, ...]:  # and another
    text = """
    of two lines"""

    # the end of it
    return text, x


_OTHERS = (_of_many_lines, lambda: 5, copy.deepcopy, Patch)


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x, scale=2):
        return self.linear(x).relu() * scale


def test_code_is_made_when_it_is_looked_at_and_is_the_same():
    model = Linear()
    x, plain = torch.ones(1, 2), symbolic_trace(model)
    with fast_lowering():
        late = [symbolic_trace(model) for _ in range(5)]
        assert not any({"_code", "_lineno_map"} & vars(each).keys() for each in late)
        assert late[0].code == plain.code
        assert late[1]._lineno_map == plain._lineno_map
        assert inspect.signature(late[2].forward) == inspect.signature(plain.forward)
        assert torch.equal(late[3](x), plain(x))
        assert torch.equal(pickle.loads(pickle.dumps(late[4]))(x), plain(x))
        assert torch.equal(copy.deepcopy(late[4])(x), plain(x))
        later, text = symbolic_trace(model), str(late[4])
    assert torch.equal(later(x), plain(x)) and later.code == plain.code
    assert plain.code not in text and plain.code in str(later)


def test_changed_graph_gets_other_code():
    with fast_lowering():
        module = symbolic_trace(Linear())
        assert "relu" in module.code
        relu = next(node for node in module.graph.nodes if node.target == "relu")
        relu.target = "tanh"
        assert "relu" in module.code  # until it is recompiled
        assert "tanh" in module.recompile().src
        assert "tanh" in module.code


def test_provenance_is_the_same_without_copies():
    node = next(iter(symbolic_trace(Linear()).graph.nodes))
    node.meta["from_node"] = [NodeSource(node, "first")]
    plain = NodeSource(node, "second")
    with fast_lowering():
        shared = NodeSource(node, "second")
    assert shared == plain and shared.from_node is not node.meta["from_node"]
    assert shared.from_node[0] is node.meta["from_node"][0]


def test_composite_operators_are_collected_again_once_there_are_others():
    with fast_lowering():
        before = torch_programs._collect_all_valid_cia_ops()
        assert torch_programs._collect_all_valid_cia_ops() is before
        with torch.library._scoped_library("patches_test", "FRAGMENT") as library:
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
            after = torch_programs._collect_all_valid_cia_ops()
            assert {str(each) for each in after - before} == {"patches_test.twice.default"}
            patched = after
    with torch.library._scoped_library("patches_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        assert torch_programs._collect_all_valid_cia_ops() == patched


def test_text_of_a_function_is_that_of_inspect():
    texts = [f for patch in PATCHES for f in patch.texts or (patch.original,)]
    for each in (getattr(f, "fget", f) for f in (*texts, *SOURCES, *_OTHERS)):
        function = inspect.unwrap(each)
        assert read_source(function) == inspect.getsource(function).rstrip("\n") + "\n"


def test_sizes_have_the_same_expressions_also_once_a_symbol_is_replaced():
    sizes = ({0: Dim("n", min=2, max=8)},)
    program = export(Linear(), (torch.ones(3, 2),), dynamic_shapes=sizes)
    (size,) = (n.meta["val"].shape[0] for n in program.graph.nodes if n.name == "x")
    node, environment = (size * 2 + 1).node, size.node.shape_env
    with fast_lowering():
        assert [node.expr, node.expr] == [2 * size.node.expr + 1] * 2
        environment._set_replacement(size.node.expr, sympy.Integer(3), "test")
        assert node.expr == 7 and node.maybe_as_int() == 7
        assert size.node.wrap_int(5).expr == 5


def test_arithmetic_of_sizes_gives_what_it_gave_each_time_as_another_size():
    sizes = ({0: Dim("n", min=2, max=8)},)
    program = export(Linear(), (torch.ones(3, 2),), dynamic_shapes=sizes)
    (n,) = (n.meta["val"].shape[0] for n in program.graph.nodes if n.name == "x")

    def compute():
        results = [n + 1, 1 + n, n - 2, n * 3, n * n, n // 2, (n + 1) * 2 + n, n * 1.5]
        results += [n == 3, n != 3, n < 9, n <= 8, n > 1, n >= 4, n * 2 == n + n]
        return [(type(each), *vars_of(each.node)) for each in results], results

    def vars_of(node):
        return node.expr, node.pytype, node.hint, node.constant, node._optimized_summation

    plain, _ = compute()
    with fast_lowering():
        first, one = compute()
        second, other = compute()
    assert first == second == plain
    assert not {id(each.node) for each in one} & {id(each.node) for each in other}


class Mixed(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.aten.mm(x, y)


def test_wrong_dtypes_are_refused_by_executorch_itself():
    edge = to_edge(export(Mixed(), (torch.ones(2, 2), torch.ones(2, 2))))
    module = edge.exported_program().graph_module
    with fast_lowering():
        verifier._check_tensor_args_matching_op_allowed_dtype(module)
        first = next(iter(module.graph.nodes))
        first.meta["val"] = first.meta["val"].to(torch.int32)
        with pytest.raises(Exception, match="dtype"):
            verifier._check_tensor_args_matching_op_allowed_dtype(module)


class Branches(torch.nn.Module):
    """Control flow, a mutable buffer and a dynamic size."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))
        return torch.nn.functional.layer_norm(x, (4,)) * self.count


@pytest.mark.parametrize(
    "partitioners", [[], pytest.param([XnnpackPartitioner], marks=pytest.mark.slow)]
)
def test_emitted_bytes_are_the_same(partitioners):
    sizes = ({0: Dim("n", min=2, max=8)},)
    program = export(Branches().requires_grad_(False), (torch.ones(3, 4),), dynamic_shapes=sizes)

    def build():
        own = {"f": [make() for make in partitioners]}
        lowered = lower({"f": copy.deepcopy(program)}, own)
        return emit(lowered).buffer

    plain = build()
    with fast_lowering():
        assert build() == plain


def test_setting_is_in_no_key(tmp_path):
    bench = bench_of("archives", tmp_path)

    def keys(fast):
        plan = Plan(Workspace(bench.root, Store(bench.store), 1, fast_lowering=fast))
        return [each.key for package in plan.packages for each in plan.compiles(package) or ()]

    assert keys(True) == keys(False) != []
