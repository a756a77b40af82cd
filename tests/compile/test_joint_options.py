"""Options of a joint call written with ExecuTorch's API alone give the same bytes as methods that
are compiled separately and linked. Each option must visibly take effect."""

import json
from types import SimpleNamespace

import pytest
import torch
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.backend_details import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo
from executorch.exir.dialects._ops import ops
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import (
    ConstraintBasedSymShapeEvalPass,
    HintBasedSymShapeEvalPass,
)
from torch import nn
from torch.export import export
from torch.export.experimental import _export_forward_backward

from pipeline.compile.edge_config import make_edge_config
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import make_object, parse_object
from pipeline.config.edge import EdgeConfig
from pipeline.config.emission import EmitConfig, MethodEmit
from pipeline.program.archive import load_program, save_programs
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support.linking import link
from tests.support.programs import shared_programs


def linked(programs, partitioners, store, settings, methods=None, edge=None, after=None):
    """Return the files of methods compiled separately, whose records went through JSON."""
    objects, delegates = [], any(partitioners.values())
    for name, program in programs.items():
        lowered = lower(
            {name: program},
            {name: partitioners[name]},
            edge=edge and make_edge_config(edge),
            passes_after={name: (after or {}).get(name, ())},
            delegates=delegates and not partitioners[name],
        )
        made = make_object(emit(lowered, settings, methods=methods or {}), store)
        objects.append(parse_object(json.loads(json.dumps(made.to_json()))))
    files = link(objects, {}, store, list(programs), dict(settings.layout))
    ptds = {f"{name}.ptd": store.read(blob.digest) for name, blob in files.ptds.items()}
    return store.read(files.pte.digest), ptds


def written(manager):
    return manager.buffer, {
        name if name.endswith(".ptd") else f"{name}.ptd": bytes(data)
        for name, data in manager._tensor_data.items()
    }


def tensors(manager, method):
    plans = {plan.name: plan for plan in manager.executorch_program.execution_plan}
    plan = plans[method]
    named = {
        each.val.extra_tensor_info.fully_qualified_name: each.val
        for each in plan.values
        if getattr(each.val, "extra_tensor_info", None)
    }
    inputs = [plan.values[index].val for index in plan.inputs]
    return SimpleNamespace(named=named, inputs=inputs, plan=plan)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


PARTITIONERS = {"step": [], "plain": [XnnpackPartitioner()], "branch": []}


@pytest.mark.slow
def test_names_plans_and_sizes_by_method_are_those_of_the_joint_call(store):
    """Each applies to one method: names of initialized buffers, a plan, sizes, and later passes."""
    edge = to_edge_transform_and_lower(
        shared_programs(),
        partitioner=PARTITIONERS,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),  # as llama's export, for linear
    )
    edge = edge.transform({"step": [ConvertToLinearPass()]})
    usual, shapes = MemoryPlanningPass(), ConstraintBasedSymShapeEvalPass()
    suite = MemoryPlanningAlgorithmSuite([naive, greedy])
    own = MemoryPlanningPass(suite, alloc_graph_input=False, alignment=48)
    joint = edge.to_executorch(
        ExecutorchBackendConfig(
            passes=[InitializedMutableBufferPass(["count"])],
            emit_mutable_buffer_names=True,
            memory_planning_pass={"step": usual, "plain": own, "branch": usual},
            sym_shape_eval_pass={
                "step": HintBasedSymShapeEvalPass(),
                "plain": shapes,
                "branch": shapes,
            },
            do_quant_fusion_and_const_prop=True,
            segment_alignment=4096,
            constant_tensor_alignment=64,
            delegate_alignment=32,
        )
    )
    settings = EmitConfig.model_validate(
        {
            "initialized_buffers": ["count"],
            "emit_mutable_buffer_names": True,
            "do_quant_fusion_and_const_prop": True,
            "layout": {
                "segment_alignment": 4096,
                "constant_tensor_alignment": 64,
                "delegate_alignment": 32,
            },
        }
    )
    planning = {"algorithm": ["naive", "greedy"], "alloc_graph_input": False, "alignment": 48}
    methods = {
        "plain": MethodEmit.model_validate({"memory_planning": planning}),
        "step": MethodEmit(sym_shape_eval="hint_based"),
    }
    after = {"step": [ConvertToLinearPass()]}
    unchecked = EdgeConfig(check_ir_validity=False)
    made = linked(shared_programs(), PARTITIONERS, store, settings, methods, unchecked, after)
    assert made == written(joint)
    step, plain = tensors(joint, "step"), tensors(joint, "plain")
    assert {"shared.cache", "shared.count"} <= step.named.keys()
    assert step.named["shared.count"].data_buffer_idx == 1
    assert step.inputs[0].sizes == [3, 8] and plain.inputs[0].sizes == [16, 8]
    assert step.inputs[0].allocation_info and not plain.inputs[0].allocation_info
    assert any(operator.name == "aten::linear" for operator in step.plan.operators)


@pytest.mark.slow
def test_buffers_without_planned_memory_have_names(store):
    programs = {name: shared_programs()[name] for name in ("step", "plain")}
    partitioners = {"step": [], "plain": []}
    unplanned = MemoryPlanningPass(alloc_mutable_buffers=False)
    joint = to_edge_transform_and_lower(programs).to_executorch(
        ExecutorchBackendConfig(
            emit_mutable_buffer_names=True,
            memory_planning_pass=unplanned,
            reinplace_extra_ops=frozenset({ops.edge.aten.mul.Tensor}),
        )
    )
    planning = {"alloc_mutable_buffers": False}
    settings = EmitConfig.model_validate(
        {
            "emit_mutable_buffer_names": True,
            "memory_planning": planning,
            "reinplace_extra_ops": ["aten.mul.Tensor"],
        }
    )
    programs = {name: shared_programs()[name] for name in programs}
    assert linked(programs, partitioners, store, settings) == written(joint)
    step = tensors(joint, "step")
    assert not step.named["shared.cache"].allocation_info
    assert any(operator.name == "aten::mul_" for operator in step.plan.operators)


class Reads(nn.Module):
    """Changes a buffer, or reads its initial value."""

    def __init__(self, changes):
        super().__init__()
        self.changes = changes
        self.register_buffer("cache", torch.arange(4.0))

    def forward(self, x):
        return x + self.cache.add_(1) if self.changes else x * self.cache


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_a_named_buffer_is_not_taken_for_a_constant(store, together):
    """The joint call gives the buffer of `b` the same index as the constant of `a`."""
    programs = {n: export(Reads(n == "b"), (torch.ones(4),)) for n in ("a", "b")}
    settings = EmitConfig(initialized_buffers=["cache"], emit_mutable_buffer_names=True)
    with pytest.raises(PipelineError, match="'cache' has the initial values of a constant"):
        if together:
            make_object(emit(lower(programs, dict.fromkeys(programs, ())), settings), store)
        linked(programs, {"a": [], "b": []}, store, settings)


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


@pytest.mark.slow
def test_weights_of_training_go_to_a_file_of_their_own(store):
    """Goes through an archive, with methods whose names sort before and after the others."""

    def programs():
        x = torch.ones(2, 4)
        made = {
            "train": _export_forward_backward(export(Trained(), (x, x))),
            "a": export(nn.Linear(4, 4).requires_grad_(False), (x,)),
            "fit": _export_forward_backward(export(Trained(), (x, x))),
        }
        with archive.open("wb") as file:
            save_programs(made, file)
        return {name: load_program(archive, name) for name in made}

    archive = store.root.parent / "model.pt2"
    store.root.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    own = programs()
    joint = to_edge_transform_and_lower(
        own, compile_config=EdgeCompileConfig(_check_ir_validity=False)
    ).to_executorch(ExecutorchBackendConfig(external_mutable_weights=True))
    torch.manual_seed(0)
    settings, edge = EmitConfig(external_mutable_weights=True), EdgeConfig(check_ir_validity=False)
    made = linked(programs(), dict.fromkeys(own, ()), store, settings, edge=edge)
    assert made == written(joint) and made[1]
    names = [plan.name for plan in joint.executorch_program.execution_plan]
    assert names[:3] == ["a", "fit", "train"] and "train" in names[3]


class Add(nn.Module):
    def forward(self, x):
        return torch.sin(x + x)


def on_device():
    partitioner = AddMulPartitionerDemo()
    specs = [*partitioner.delegation_spec.compile_specs, CompileSpec("target_device", b"cuda:0")]
    partitioner.delegation_spec = DelegationSpec("BackendWithCompilerDemo", specs)
    return partitioner


@pytest.mark.slow
def test_copies_to_a_device_are_skipped_by_method(store):
    class Double(nn.Module):
        def forward(self, x, y):
            return x + y

    def programs():
        x = torch.ones(4)
        return {name: export(Double(), (x, x)) for name in ("stays", "copied", "outputs")}

    skips = {
        "stays": {"skip_h2d_for_method_inputs": True},
        "outputs": {"skip_d2h_for_method_outputs": True},
    }
    partitioners = {name: [on_device()] for name in programs()}
    joint = to_edge_transform_and_lower(programs(), partitioner=partitioners).to_executorch(
        ExecutorchBackendConfig(
            propagate_device_config={n: PropagateDeviceConfig(**own) for n, own in skips.items()}
        )
    )
    methods = {n: MethodEmit.model_validate({"propagate_device": own}) for n, own in skips.items()}
    made = linked(programs(), partitioners, store, EmitConfig(), methods)
    assert made == written(joint)
    counts = {n: len(tensors(joint, n).plan.operators) for n in programs()}
    assert counts == {"copied": 2, "stays": 1, "outputs": 1}
    cpu = to_edge_transform_and_lower(programs(), partitioner=partitioners).to_executorch(
        ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    )
    settings = EmitConfig(enable_non_cpu_memory_planning=False)
    assert linked(programs(), partitioners, store, settings) == written(cpu) != written(joint)


class Pooled(nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=(2, 3))


@pytest.mark.slow
def test_a_partitioner_of_another_method_takes_the_edge_settings_of_this_one(store):
    """In the joint call. `skip_dim_order` shows in the bytes of a method without partitioners."""
    x = torch.ones(1, 4, 3, 3).to(memory_format=torch.channels_last)

    def programs():
        return {
            "pooled": export(Pooled(), (x,)),
            "plain": export(nn.Sigmoid(), (torch.ones(4),)),
        }

    partitioners = {"pooled": [], "plain": [XnnpackPartitioner()]}
    joint = to_edge_transform_and_lower(
        programs(),
        partitioner=partitioners,
        compile_config=EdgeCompileConfig(_skip_dim_order=True),
    ).to_executorch()
    edge = EdgeConfig(skip_dim_order=True)
    made = linked(programs(), partitioners, store, EmitConfig(), edge=edge)
    assert made == written(joint)
    alone = {"pooled": [], "plain": []}
    assert linked(programs(), alone, store, EmitConfig(), edge=edge) != made
    operators = [each.name for each in tensors(joint, "pooled").plan.operators]
    assert "dim_order_ops::_to_dim_order_copy" in operators
