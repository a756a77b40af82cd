"""The contract of every overload of `to_backend`; `test_lower` covers `to_backend_multiple`."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.test.backend_with_preprocess_all_demo import (
    FirstBackendWithPreprocessAll,
)
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import export

from pipeline import to_backend, to_backend_multiple, validation_disabled
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.compile.preprocess import registry as preprocessors
from pipeline.compile.preprocess.cache import counted_preprocess
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support import functions
from tests.support.configs import parse_config
from tests.support.functions import BACKEND_ID, Linears, Two, payloads
from tests.support.programs import shared_programs

FAST, SMALL = CompileSpec("mode", b"fast"), CompileSpec("mode", b"small")


@pytest.fixture(autouse=True)
def text_backend(monkeypatch):
    monkeypatch.setitem(preprocessors.REGISTERED, BACKEND_ID, functions.preprocess)
    functions.calls.clear()


@pytest.fixture(scope="module")
def edge():
    program = export(Two().eval().requires_grad_(False), (torch.ones(2, 4),))
    return to_edge(program).exported_program()


@pytest.fixture(scope="module")
def methods():
    manager = to_edge(shared_programs())
    return {name: manager.exported_program(name) for name in ("step", "plain", "branch")}


# A whole program


def test_a_whole_program_equals_executorchs_own_call(methods, tmp_path):
    theirs = backend_api.to_backend("XnnpackBackend", methods["plain"], [])
    store = Store(tmp_path / "store")
    for hits in (0, 1):
        with counted_preprocess() as counts:
            ours = to_backend("XnnpackBackend", methods["plain"], [], store=store)
        assert isinstance(ours, LoweredBackendModule) and counts.hits == hits
        assert ours.processed_bytes == theirs.processed_bytes
        assert ours.meta == theirs.meta
        assert ours.named_data_store_output == theirs.named_data_store_output


def test_methods_have_compile_specs_of_their_own(methods):
    specs = {"plain": [FAST], "step": [SMALL, FAST]}
    lowered = to_backend(BACKEND_ID, methods, specs)
    assert list(lowered) == ["step", "plain"]  # in program order; branch has no delegate
    assert lowered["plain"].processed_bytes.endswith(b"mode=b'fast'")
    assert lowered["step"].processed_bytes.endswith(b"mode=b'small'\nmode=b'fast'")
    assert lowered["step"].compile_specs == [SMALL, FAST]
    assert lowered["step"].original_module is methods["step"]


def test_a_backend_that_sees_all_methods_is_called_once(methods, monkeypatch):
    seen = []

    def watching(programs, specs):
        seen.append(dict(specs))
        return {name: [PreprocessResult(name.encode())] for name in programs}

    monkeypatch.setattr(
        FirstBackendWithPreprocessAll, "preprocess_multimethod", staticmethod(watching)
    )
    specs = {"plain": [FAST], "step": [SMALL]}
    lowered = to_backend("FirstBackendWithPreprocessAll", methods, specs)
    assert seen == [{"step": [[SMALL]], "plain": [[FAST]]}]
    assert {name: each.processed_bytes for name, each in lowered.items()} == {
        "step": b"step",
        "plain": b"plain",
    }


def test_partitioners_have_compile_specs_of_their_own(methods):
    by_method = {"plain": Linears(BACKEND_ID, FAST), "step": Linears(BACKEND_ID, SMALL)}
    for lowered in (
        to_backend_multiple(methods, by_method),
        to_backend(MethodProgramsPartitionerSpec(methods, by_method)),
    ):
        assert all(p.endswith(b"mode=b'fast'") for p in payloads(lowered["plain"]))
        assert all(p.endswith(b"mode=b'small'") for p in payloads(lowered["step"]))
        assert payloads(lowered["plain"]) and payloads(lowered["step"])
        assert lowered["branch"] is methods["branch"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3, None, None), TypeError, "first, not int"),
        ((BACKEND_ID, "program", []), TypeError, "must be given an ExportedProgram, or a mapping"),
        ((BACKEND_ID, "one", "specs"), TypeError, "must be a sequence of CompileSpec, not str"),
        ((BACKEND_ID, "one", ["specs"]), TypeError, "must hold CompileSpec, not str"),
        ((BACKEND_ID, "all", []), TypeError, "must be a mapping of method names, not list"),
        ((BACKEND_ID, "all", {"run": "x"}), KeyError, "no method run; known: step, plain, branch"),
        ((BACKEND_ID, "all", {"step": "x"}), TypeError, "step: must be a sequence of CompileSpec"),
        (("one", XnnpackPartitioner), TypeError, "must be given a Partitioner, not ABCMeta"),
    ],
)
def test_other_arguments_are_refused(edge, methods, arguments, error, words):
    known = {"one": edge, "all": methods}
    given = [known.get(each, each) if isinstance(each, str) else each for each in arguments]
    with pytest.raises(error, match=words):
        to_backend(*given)


# Whole modules


def test_modules_are_lowered_whole_each_for_itself(edge):
    lowered = to_backend(BACKEND_ID, edge, [FAST], modules_to_lower=["first", "second"])
    assert [p.count(b"addmm") for p in payloads(lowered)] == [1, 1]
    assert all(p.endswith(b"mode=b'fast'") for p in payloads(lowered))
    names = [n.target for n in lowered.graph.nodes if n.op == "call_function"]
    assert sum("relu" in str(name) for name in names) == 1
    assert not lowered.state_dict
    with pytest.raises(PipelineError, match=r"'first\.weight' is a parameter, not a module"):
        to_backend(BACKEND_ID, edge, [], modules_to_lower=["first.weight"])


class Around(torch.nn.Module):
    """A module called before and after another one."""

    def __init__(self):
        super().__init__()
        self.outer, self.inner = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(self.outer(self.inner(self.outer(x))))


def test_calls_that_depend_on_each_other_are_apart():
    program = export(Around().eval().requires_grad_(False), (torch.ones(2, 4),))
    edge = to_edge(program).exported_program()
    lowered = to_backend(BACKEND_ID, edge, [], modules_to_lower=["outer@*", "inner@*"])
    assert [p.count(b"addmm") for p in payloads(lowered)] == [1, 1, 1, 1]
    lowered = to_backend(BACKEND_ID, edge, [], modules_to_lower=["outer@1"])
    assert [p.count(b"addmm") for p in payloads(lowered)] == [1]


# Partitioners


def test_one_partitioner_equals_executorchs_own_call(methods):
    for name in ("step", "plain"):
        theirs = backend_api.to_backend(methods[name], XnnpackPartitioner())
        ours = to_backend(methods[name], XnnpackPartitioner())
        assert ours.graph_module.code == theirs.graph_module.code
        assert ours.graph_signature == theirs.graph_signature
        assert payloads(ours) == payloads(theirs)


def test_constants_that_a_branch_shares_are_given_to_both():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            return torch.cond(y.sum() > 0, lambda y: y @ self.fc.weight, lambda y: y - 1, (y,))

    program = export(Branches().eval().requires_grad_(False), (torch.ones(2, 4),))
    edge = to_edge(program).exported_program()
    many = to_backend_multiple({"run": edge}, Linears(), modules_to_lower=["fc"])["run"]
    one = to_backend(edge, Linears(), modules_to_lower=["fc"])
    assert [p.count(b"addmm") for p in payloads(one)] == [1] == [len(payloads(many))]


class Meddler(Partitioner):
    """A partitioner that leaves an unused node in the graph."""

    def partition(self, exported_program):
        graph = exported_program.graph_module.graph
        node = graph.output_node().args[0][0]
        with graph.inserting_after(node):
            twin = graph.call_function(node.target, node.args, node.kwargs)
        twin.meta = dict(node.meta)
        return PartitionResult(exported_program, {})


def test_validation_of_partitioners_can_be_switched_off(methods):
    def lower():
        return to_backend(methods["plain"], Meddler())

    with pytest.raises(AssertionError, match="should not modify the graph module"):
        lower()
    with validation_disabled():
        assert lower() is not None
        with validation_disabled():
            lower()
        assert lower() is not None
    with pytest.raises(AssertionError, match="should not modify the graph module"):
        lower()
    with pytest.raises(ZeroDivisionError), validation_disabled():
        _ = 1 / 0
    with pytest.raises(AssertionError, match="should not modify the graph module"):
        to_backend_multiple(methods, {"plain": Meddler()})


def test_tags_of_an_unknown_backend(methods):
    class Nowhere(Linears):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            return PartitionResult(
                result.tagged_exported_program,
                dict.fromkeys(result.partition_tags, DelegationSpec("Nowhere", [])),
            )

    with pytest.raises(NotImplementedError, match=r"Backend Nowhere was not found; .*known: "):
        to_backend(methods["plain"], Nowhere())


def test_a_config_gives_methods_compile_specs_of_their_own():
    methods = {"encode": ["vulkan"], "decode": [{"vulkan": {"force_fp16": True}}]}
    data = {"model": "m", "methods": {n: {"partitioners": p} for n, p in methods.items()}}
    config = parse_config("p", data, "p.yaml")
    specs = {
        name: [
            {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}
            for partitioner in make_filtered_partitioners(method.partitioners)
        ]
        for name, method in config.methods.items()
    }
    assert specs["decode"][0]["force_fp16"] == (1).to_bytes(1, "little")
    assert "force_fp16" not in specs["encode"][0]
