"""What delegates run and what they leave, checked against hand-counted graphs."""

from __future__ import annotations

import importlib

import pytest
import torch
from executorch.exir.backend.utils import WhyNoPartition
from executorch.exir.lowered_backend_module import get_lowered_submodules
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch.export import Dim, export

from pipeline.backends import BACKENDS, CacheScope, PartitionerSpec
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.inspect.traced_facts import add_source_lines
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import FilteredPartitioner, make_filtered_partitioners
from pipeline.features.preprocess_cache.key import describe
from pipeline.features.quantization.quantize import quantize
from pipeline.features.reasons.reasons import _neutralize
from pipeline.program.archive import load_program, save_programs
from pipeline.program.graphs import NodePlaces, find_origins, graph_modules, iter_nodes
from pipeline.program.inputs import as_input_sets

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))  # 96 bytes
IN_CONTROL_FLOW = "it is in control flow, which its partitioner does not examine"
OF_NO_TYPE = "its partitioner doesn't support operators of this type"


def spec(name, modules=None, **options):
    return PartitionerSpec(name=name, options=BACKENDS[name].options(**options), modules=modules)


def program_of(module, arguments=(X,), **settings):
    with torch.no_grad():
        return export(module.eval().requires_grad_(False), arguments, **settings)


def lowered(program, *specs, modules=None):
    made = lower({"run": program}, {"run": make_filtered_partitioners(specs, modules)})
    return made.exported_program("run")


def counted(program, *specs, modules=None):
    made = lowered(program, *specs, modules=modules)
    return describe_delegation(made, places=NodePlaces(program))


def share(nodes, operators, partitions):
    return {"nodes": nodes, "operators": operators, "partitions": partitions}


def crossing(tensors, size):
    return {"tensors": tensors, "bytes": size}


def boundary(into, out_of, copies=0):
    return {"into": crossing(*into), "out_of": crossing(*out_of), "copies": copies}


def left_of(counts):
    return [(each["operator"], each["reason"]) for each in counts["left"]]


class Chain(nn.Module):
    """An addition and a subtraction, and between them a sine of the addition's result."""

    def forward(self, x):
        y = x + x
        return torch.sin(y) - y


class Cached(nn.Module):
    """A cache that an operator modifies in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 4, 2, 8))

    def forward(self, x):
        torch.ops.llama.update_cache(x, self.keys, 0)
        return self.keys + 1.0


class Condition(nn.Module):
    """Branches that differ in size: the first takes two tensors."""

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda x, y: torch.sin(x + y), lambda x, y: x - 1.0, (x, x * 2.0)
        )


class Rows(nn.Module):
    def forward(self, x):
        return torch_map(lambda row: torch.sin(row + row), x)


class Steps(nn.Module):
    def forward(self, x):
        return scan(lambda carry, row: (carry + row, row - carry), x[0].clone(), x)


class Deep(nn.Module):
    """A branch inside a branch."""

    def forward(self, x):
        def outer(x):
            return torch.cond(x.sum() > 1, lambda x: x + x, lambda x: torch.sin(x), (x,))

        return torch.cond(x.sum() > 0, outer, lambda x: x - 1.0, (x,))


class Parts(nn.Module):
    """`split` returns its tensors through `getitem`; the constant isn't an operator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x):
        first, second = torch.split(x, 4, 1)
        return first + second + self.weight


ROW = X[0].nbytes  # 32
# Module, nodes, nodes that add_sub takes, its partitions, subgraphs, and what goes in and out, as
# tensors and bytes.
GRAPHS = [
    (Chain, 3, 2, 2, 0, (3, 3 * X.nbytes), (2, 2 * X.nbytes)),
    # sum, gt and mul outside; add, sin and sub inside. The first branch is the more expensive one.
    (Condition, 6, 2, 2, 2, (2, 2 * X.nbytes), (1, X.nbytes)),
    (Rows, 2, 1, 1, 1, (3, 3 * ROW), (3, 3 * ROW)),
    # A sum and a comparison twice, add, sin, sub. A branch's constants are its operands.
    (Deep, 7, 2, 2, 4, (2, X.nbytes + 4), (1, X.nbytes)),
    (Parts, 3, 2, 1, 0, (2, 2 * 48), (1, 48)),
]


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: case[0].__name__)
def test_graphs_are_counted_as_by_hand(case):
    module, nodes, delegated, partitions, subgraphs, into, out_of = case
    counts = counted(program_of(module()), spec("add_sub"))
    assert (counts["nodes"], counts["delegated_nodes"], counts["subgraphs"]) == (
        nodes,
        delegated,
        subgraphs,
    )
    assert counts["partitions"] == {"AddSubBackend": partitions}
    operators = counts["backends"]["AddSubBackend"]["operators"]
    assert counts["backends"] == {"AddSubBackend": share(delegated, operators, partitions)}
    assert counts["boundary"] == boundary(into, out_of)
    assert len(counts["left"]) == sum(counts["undelegated"].values()) == nodes - delegated


def test_a_call_that_changes_its_arguments_is_counted():
    importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
    counts = counted(program_of(Cached(), (torch.ones(1, 1, 2, 8),)))
    assert counts["undelegated"] == {"aten.add.Tensor": 1, "llama.update_cache": 1}
    assert counts["nodes"] == 2
    cached = next(each for each in counts["left"] if each["operator"] == "llama.update_cache")
    assert cached["place"] is not None


def test_the_body_of_a_scan_is_called_for_each_row():
    counts = counted(program_of(Steps()), spec("add_sub"))
    assert counts["partitions"] == {"AddSubBackend": 1} and counts["delegated_nodes"] >= 2
    assert counts["boundary"]["into"] == crossing(6, 6 * ROW)
    assert counts["boundary"]["out_of"] == crossing(6, 6 * ROW)


def test_portable_methods_cross_no_boundary():
    counts = counted(program_of(Condition()))
    assert (counts["nodes"], counts["delegated_nodes"], counts["subgraphs"]) == (6, 0, 2)
    assert counts["backends"] == counts["partitions"] == {}
    assert counts["boundary"] == boundary((0, 0), (0, 0))
    why = describe_delegation(lowered(program_of(Chain())), partitioners=())["left"]
    assert [each["reason"] for each in why] == ["portable kernels only, as the config says"] * 3


class Step(nn.Module):
    """A single operator, given by name."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def forward(self, x):
        operators = {"sin": torch.sin, "erf": torch.erf, "exp": torch.exp}
        operators |= {"add": lambda x: x + 0.5, "sub": lambda x: x - 0.5}
        for name in self.names:
            x = operators[name](x)
        return x


def runs(names, taken):
    """Return the number of runs of consecutive names that are taken."""
    return sum(
        name in taken and (place == 0 or names[place - 1] not in taken)
        for place, name in enumerate(names)
    )


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["sin", "erf", "exp", "add", "sub"]), min_size=1, max_size=8))
def test_every_call_is_delegated_or_left(names):
    program = program_of(Step(*names))
    counts = counted(program, spec("add_sub"))
    taken = [name for name in names if name in ("add", "sub")]
    others = [name for name in names if name not in ("add", "sub")]
    assert (counts["nodes"], counts["delegated_nodes"]) == (len(names), len(taken))
    assert counts["operators"] == len(set(names))
    assert counts["delegated_operators"] == len(set(taken))
    assert sum(counts["partitions"].values()) == runs(names, ("add", "sub"))
    assert [each["operator"] for each in counts["left"]] == [f"aten.{name}" for name in others]
    # The first node is the input; each operator is one node.
    places = [place for place, name in enumerate(names, 1) if name not in ("add", "sub")]
    assert [each["place"] for each in counts["left"]] == places
    transfers = (runs(names, ("add", "sub")), X.nbytes * runs(names, ("add", "sub")))
    assert counts["boundary"] == boundary(transfers, transfers)


def test_methods_of_several_backends():
    counts = counted(program_of(Step("add", "exp", "erf", "exp")), spec("add_sub"), spec("xnnpack"))
    assert counts["backends"] == {
        "AddSubBackend": share(1, 1, 1),
        "XnnpackBackend": share(2, 1, 2),
    }
    assert counts["partitions"] == {"AddSubBackend": 1, "XnnpackBackend": 2}
    assert (counts["nodes"], counts["delegated_nodes"]) == (4, 3)
    assert (counts["operators"], counts["delegated_operators"]) == (3, 2)
    # A value passed between two delegates leaves one and enters the other.
    assert counts["boundary"]["into"] == counts["boundary"]["out_of"] == crossing(3, 3 * X.nbytes)
    assert left_of(counts) == [("aten.erf", f"xnnpack: {OF_NO_TYPE}")]


def test_sizes_count_with_their_upper_bounds():
    shapes = ({0: Dim("rows", min=2, max=16)},)
    counts = counted(program_of(Chain(), dynamic_shapes=shapes), spec("add_sub"))
    assert counts["boundary"]["into"] == crossing(3, 3 * 16 * ROW)


def test_copies_beside_delegates_are_counted():
    class Cast(nn.Module):
        def forward(self, x):
            return torch.exp(x.double().float()).double().sin()

    counts = counted(program_of(Cast()), spec("xnnpack"))
    assert counts["partitions"] == {"XnnpackBackend": 1}
    assert counts["boundary"]["copies"] == 2  # the first copy has only another copy next to it
    assert sum(n for name, n in counts["undelegated"].items() if "_to_dim_order_copy" in name) == 3


# Reasons


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.add(self.first(x), x, alpha=2)
        z = (self.second(y) > 0).to(torch.int64) + 1
        return torch.erf(y), z


def test_xnnpack_says_why():
    counts = counted(program_of(Several()), spec("xnnpack"))
    assert dict(left_of(counts)) == {
        "aten.add.Tensor": "invalid dtype: int64",
        "aten.gt.Scalar": OF_NO_TYPE,
        "aten.erf": OF_NO_TYPE,
        "dim_order_ops._to_dim_order_copy": "invalid dtype: bool, int64",
    } | {name: why for name, why in left_of(counts) if "alpha" in why and "add" not in name}
    assert ("aten.add.Tensor", "Add node doesn't support alpha != 1") in left_of(counts)


def test_the_config_says_why():
    counts = counted(program_of(Several()), spec("xnnpack", configs=["LinearConfig"]))
    assert ("aten.add.Tensor", "`configs` leaves its config out") in left_of(counts)
    counts = counted(program_of(Step("exp")), spec("xnnpack", config_precisions=["static_quant"]))
    assert left_of(counts) == [("aten.exp", "not enabled precision types")]


@pytest.mark.parametrize("of_method", [True, False], ids=["of the method", "of the partitioner"])
def test_what_is_outside_of_the_modules(of_method):
    own = {} if of_method else {"modules": ("first",)}
    counts = counted(
        program_of(Several()), spec("xnnpack", **own), modules=["first"] if of_method else None
    )
    assert {reason for _, reason in left_of(counts)} == {"outside `modules: [first]`"}
    assert {each["module"] for each in counts["left"]} == {"", "second"}


def test_what_stands_in_control_flow():
    counts = counted(program_of(Condition()), spec("xnnpack"))
    assert left_of(counts) == [
        ("aten.sum.dim_IntList", OF_NO_TYPE),
        ("aten.gt.Scalar", OF_NO_TYPE),
        ("aten.add.Tensor", IN_CONTROL_FLOW),
        ("aten.sin", IN_CONTROL_FLOW),
        ("aten.sub.Tensor", IN_CONTROL_FLOW),
    ]


SCHEMA = "schema = aten::topk(Tensor self, SymInt k, int dim=-1, *, int[2] pad) -> "


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("invalid  dtype.", "invalid dtype"),
        ("add_1 has input the_value", "it has input an input"),
        ("shape [s77, 3*s77, u2, 4]", "shape [s0, 3*s0, s1, 4]"),
        ("dtype torch.int8 not in {torch.int64, torch.bool}",
         "dtype torch.int8 not in {torch.bool, torch.int64}"),
        (f"<EdgeOpOverload: aten.topk.default>: {SCHEMA}(Tensor values, Tensor) is not there",
         "aten.topk.default is not there"),
        (f"no <EdgeOpOverload: aten.topk.default>: {SCHEMA}Tensor(a!) here",
         "no aten.topk.default here"),
        ("<function _handler at 0x7f0012ab> failed", "_handler failed"),
        ("no dtype.\nTraceback (most recent call last):\n  File \"/x/y.py\", line 2", "no dtype"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_changes_between_equal_programs_is_no_part_of_a_reason(said, kept):
    graph = torch.fx.Graph()
    value = graph.placeholder("the_value")
    node = graph.create_node("call_function", torch.add, (value, value), name="add_1")
    assert _neutralize(said, node) == kept


def test_no_key_of_a_partition_holds_a_reason():
    """A delegate's inputs take their names and metadata from the operators that were left."""
    program = program_of(Several())
    noted = lowered(program, spec("xnnpack", configs=["LinearConfig"]), spec("xnnpack"))
    silent = [
        FilteredPartitioner(each.inner)
        for each in make_filtered_partitioners(
            [spec("xnnpack", configs=["LinearConfig"]), spec("xnnpack")]
        )
    ]
    bare = lower({"run": program}, {"run": silent}).exported_program("run")
    keys = []
    for made in (noted, bare):
        delegates = [each for _, each, _ in get_lowered_submodules(made.graph_module)]
        assert len(delegates) == 2
        keys.append([describe(d.original_module, d.compile_specs, CacheScope()).digest
                     for d in delegates])  # fmt: skip
    assert keys[0] == keys[1]
    reasons = [each["reason"] for each in describe_delegation(noted)["left"]]
    assert all(reasons) and len(reasons) == len(describe_delegation(bare)["left"])
    assert {each["reason"] for each in describe_delegation(bare)["left"]} == {""}


def test_what_is_listened_to_is_as_before_when_a_partitioner_fails():
    before, reasons = WhyNoPartition.__call__, BACKENDS["xnnpack"].lowering.reasons
    partitioner = make_filtered_partitioners([spec("xnnpack")])[0].inner
    with pytest.raises(ValueError), reasons(partitioner, program_of(Chain())):
        assert WhyNoPartition.__call__ is not before
        raise ValueError
    assert WhyNoPartition.__call__ is before


# Places


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.outside, self.inside = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.erf(self.outside(x))
        return torch.cond(
            y.sum() > 0, lambda y: torch.erf(self.outside(y)), lambda y: self.inside(y) - 0.5, (y,)
        )


def names_at(program, counts):
    nodes = list(iter_nodes(program))
    return [(each["operator"], nodes[each["place"]].name) for each in counts["left"]]


def test_places_are_those_of_the_source():
    program = program_of(Layers())
    assert names_at(program, counted(program)) == [
        ("aten.permute_copy", "linear"),
        ("aten.addmm", "linear"),
        ("aten.erf", "erf"),
        ("aten.sum.dim_IntList", "sum_1"),
        ("aten.gt.Scalar", "gt"),
        ("aten.permute_copy", "linear"),
        ("aten.addmm", "linear"),
        ("aten.erf", "erf_1"),
        ("aten.permute_copy", "linear"),
        ("aten.addmm", "linear"),
        ("aten.sub.Tensor", "sub"),
    ]
    places = [each["place"] for each in counted(program)["left"]]
    assert len(set(places)) == 8  # a linear layer is two operators
    # torch.export records no modules for nodes in a branch, only for those around it.
    assert {each["module"] for each in counted(program)["left"]} == {"", "outside"}


def test_what_stands_in_a_branch_is_of_the_module_around():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = Deep()

        def forward(self, x):
            return torch.exp(self.deep(x))

    modules = {each["operator"]: each["module"] for each in counted(program_of(Outer()))["left"]}
    assert modules == dict.fromkeys(modules, "deep") | {"aten.exp": ""}
    assert modules["aten.sin"] == "deep"  # of the inner branch


@pytest.mark.slow
def test_places_outlive_constants_that_branches_share():
    """In this case the program is lowered from a copy."""
    program = program_of(Layers())
    counts = counted(program, spec("xnnpack"))
    assert counts["partitions"] == {"XnnpackBackend": 1}
    assert [name for _, name in names_at(program, counts)][:3] == ["erf", "sum_1", "gt"]


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_places_lead_through_a_quantized_program(tmp_path, dynamic):
    program = program_of(Several())
    config = BACKENDS["xnnpack"].quantization.options(quantizer="xnnpack", dynamic=dynamic)
    quantized = quantize(program, config, as_input_sets([(X,)], "example"))
    origins = find_origins(quantized, program)
    with open(tmp_path / "quantized.pt2", "wb") as file:
        save_programs({"forward": quantized}, file)
    loaded = load_program(tmp_path / "quantized.pt2", "forward")
    made = lowered(loaded, spec("xnnpack"))
    counts = describe_delegation(made, places=NodePlaces(loaded, origins))
    nodes = list(iter_nodes(program))
    found = {
        (each["operator"], nodes[each["place"]].name)
        for each in counts["left"]
        if each["place"] is not None
    }
    assert {("aten.erf", "erf"), ("aten.gt.Scalar", "gt")} <= found
    own = [each for each in counts["left"] if "quantize" not in each["operator"]]
    assert own and all(each["place"] is not None for each in own)


def test_lines_take_the_place_of_places(tmp_path):
    program = program_of(Chain())
    counts = counted(program, spec("add_sub"))
    told = add_source_lines(counts, program, tmp_path)
    assert [sorted(each) for each in told["left"]] == [["line", "module", "operator", "reason"]]
    assert "torch.sin(y) - y  # " in told["left"][0]["line"]
    assert "in Chain.forward" in told["left"][0]["line"]
    assert {name: value for name, value in told.items() if name != "left"} == {
        name: value for name, value in counts.items() if name != "left"
    }
    counts["left"][0]["place"] = None
    assert add_source_lines(counts, program, tmp_path)["left"][0]["line"] == ""


def test_graphs_of_control_flow_are_numbered_alike_when_loaded(tmp_path):
    program = program_of(Deep())
    with open(tmp_path / "deep.pt2", "wb") as file:
        save_programs({"forward": program}, file)
    loaded = load_program(tmp_path / "deep.pt2", "forward")
    names = [[[n.name for n in m.graph.nodes] for m in graph_modules(p.graph_module)]
             for p in (program, loaded)]  # fmt: skip
    assert names[0] == names[1] and len(names[0]) == 5
