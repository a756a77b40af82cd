"""The contract of `to_backend_multiple`, on ExecuTorch's demo backends and XNNPACK."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.test.backend_with_preprocess_all_demo import (
    BackendWithPreprocessAllPartitioner,
    FirstBackendWithPreprocessAll,
)
from executorch.exir.lowered_backend_module import executorch_call_delegate

from pipeline.compile import lower as lowering
from pipeline.compile.delegate import make_units
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.features.to_backend.to_backend_multiple import to_backend_multiple
from tests.support.programs import shared_programs


@pytest.fixture(scope="module")
def edge():
    manager = to_edge(shared_programs())
    return {name: manager.exported_program(name) for name in ("step", "plain", "branch")}


def delegates(program, recurse=False):
    modules = program.graph_module.modules() if recurse else [program.graph_module]
    graphs = [m for m in modules if isinstance(m, torch.fx.GraphModule)]
    return sum(n.target is executorch_call_delegate for g in graphs for n in g.graph.nodes)


def test_one_partitioner_lowers_every_method(edge):
    lowered = to_backend_multiple(edge, XnnpackPartitioner())
    assert list(lowered) == ["step", "plain", "branch"]
    assert all(delegates(program) for program in lowered.values())


def test_method_without_partitioner_passes_through_untouched(edge):
    lowered = to_backend_multiple(edge, {"plain": XnnpackPartitioner(), "branch": []})
    assert lowered["step"] is edge["step"] and lowered["branch"] is edge["branch"]
    assert delegates(lowered["plain"])


def test_programs_given_are_not_modified(edge):
    before = str(edge["plain"].graph)
    to_backend_multiple(edge, {"plain": XnnpackPartitioner()})
    assert str(edge["plain"].graph) == before and not delegates(edge["plain"])


def test_partitioners_of_a_sequence_are_tried_in_order(edge):
    first = XnnpackPartitioner(per_op_mode=True)
    one = to_backend_multiple(edge, {"plain": [first]})["plain"]
    both = to_backend_multiple(edge, {"plain": [first, XnnpackPartitioner()]})["plain"]
    assert describe_delegation(both) == describe_delegation(one)
    assert describe_delegation(one)["partitions"]["XnnpackBackend"] > 1


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "xnnpack",
        [],
        [XnnpackPartitioner()],
        {"plain": "xnnpack"},
        {"plain": [1]},
        {"plain": None},
    ],
    ids=["None", "str", "empty list", "list", "name", "number", "nothing"],
)
def test_anything_else_than_partitioners_is_a_type_error(edge, wrong):
    with pytest.raises(TypeError, match="artitioner"):
        to_backend_multiple(edge, wrong)


def test_partitioner_for_an_unknown_method_is_an_error(edge):
    with pytest.raises(KeyError, match="no method decode; known: step, plain, branch"):
        to_backend_multiple(edge, {"decode": XnnpackPartitioner()})


class Meddler(Partitioner):
    """A partitioner that removes a node from the graph that it is shown."""

    def partition(self, exported_program):
        graph = exported_program.graph_module.graph
        output = graph.output_node()
        node = output.args[0][0]
        with graph.inserting_after(node):
            twin = graph.call_function(node.target, node.args, node.kwargs)
        twin.meta = dict(node.meta)
        output.replace_input_with(node, twin)
        return PartitionResult(exported_program, {})


def test_partitioner_that_changes_the_graph_is_refused(edge):
    with pytest.raises(AssertionError, match="should not modify the graph module"):
        to_backend_multiple(edge, {"plain": Meddler()})


def test_control_flow_is_lowered_too(edge):
    partitioner = BackendWithPreprocessAllPartitioner()
    lowered = to_backend_multiple(edge, {"branch": partitioner})["branch"]
    assert delegates(lowered, recurse=True) > delegates(lowered)
    assert describe_delegation(lowered)["partitions"]["FirstBackendWithPreprocessAll"] == 1


def test_weights_that_a_delegate_consumed_leave_the_program(edge):
    lowered = to_backend_multiple(edge, {"plain": XnnpackPartitioner()})["plain"]
    assert "shared.first.weight" in edge["plain"].state_dict
    assert "shared.first.weight" not in lowered.state_dict


@pytest.fixture
def joint(monkeypatch):
    """Return a partitioner for a backend that overrides `preprocess_multimethod`, and its calls."""
    seen = []
    original = FirstBackendWithPreprocessAll.preprocess_multimethod

    def watching(programs, specs):
        seen.append(sorted(programs))
        return original(programs, specs)

    monkeypatch.setattr(
        FirstBackendWithPreprocessAll, "preprocess_multimethod", staticmethod(watching)
    )
    return BackendWithPreprocessAllPartitioner(), seen


def test_backend_that_sees_all_methods_is_given_them_together(edge, joint):
    partitioner, seen = joint
    partitioners = {"plain": partitioner, "step": XnnpackPartitioner(), "branch": partitioner}
    lowered = to_backend_multiple(edge, partitioners)
    assert seen == [["branch", "plain"]]
    assert list(lowered) == list(edge)
    theirs = to_backend(MethodProgramsPartitionerSpec(edge, partitioners))
    assert {n: payloads(p) for n, p in lowered.items()} == {
        n: payloads(p) for n, p in theirs.items()
    }


def lowers_to(backend_id):
    partitioner = Meddler()
    partitioner.delegation_spec = DelegationSpec(backend_id, [])
    return partitioner


def units_of(**partitioners):
    return make_units({name: tuple(own) for name, own in partitioners.items()})


def test_partitioner_that_says_its_backend_is_judged_by_it():
    joint, alone = lowers_to("FirstBackendWithPreprocessAll"), lowers_to("XnnpackBackend")
    other, unknown = lowers_to("SecondBackendWithPreprocessAll"), Meddler()
    assert units_of(a=[alone], b=[joint], c=[joint]) == [("b", "c"), ("a",)]
    assert units_of(a=[joint], b=[other]) == [("a",), ("b",)]  # neither sees both
    assert units_of(a=[joint], b=[alone, joint]) == [("a",), ("b",)]  # nor in two turns
    assert units_of(a=[joint, other], b=[joint], c=[alone, other]) == [("a", "b", "c")]
    assert units_of(a=[unknown], b=[joint], c=[alone, joint]) == [("a", "b"), ("c",)]


def test_result_equals_that_of_executorchs_own_call(edge):
    partitioners = {"step": XnnpackPartitioner(), "plain": XnnpackPartitioner()}
    ours = to_backend_multiple(edge, partitioners)
    theirs = to_backend(MethodProgramsPartitionerSpec(edge, partitioners))
    for name in edge:
        assert ours[name].graph_module.code == theirs[name].graph_module.code
        assert ours[name].graph_signature == theirs[name].graph_signature
        assert payloads(ours[name]) == payloads(theirs[name])


def payloads(program):
    modules = program.graph_module._modules.values()
    return [m.processed_bytes for m in modules if hasattr(m, "processed_bytes")]


def test_lowering_leaves_executorch_as_it_was():
    from executorch.exir.program import _program

    before = _program.to_backend
    programs = {"plain": shared_programs()["plain"]}
    lowering.lower(programs, {"plain": [XnnpackPartitioner()]})
    with pytest.raises(AssertionError):
        lowering.lower({"plain": shared_programs()["plain"]}, {"plain": [Meddler()]})
    assert _program.to_backend is before


class _Cache(torch.nn.Module):
    """Writes to a buffer in place, from parameters that require gradients."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 4))

    def forward(self, x, position):
        self.cache.index_copy_(0, position, self.linear(x))
        return self.cache.sum(0)


def test_a_buffer_that_is_changed_with_gradients_on_is_written_back():
    """Plain ExecuTorch raises "a leaf Variable that requires grad ..." at the very end."""
    inputs = torch.ones(1, 4), torch.tensor([1])
    with torch.enable_grad():
        program = torch.export.export(_Cache().eval(), inputs)
    lowered = lowering.lower({"forward": program}, {"forward": [XnnpackPartitioner()]})
    assert lowered.to_executorch().buffer
