"""The oracle: today's user code, which lowers all methods of a package in one ExecuTorch call."""

from __future__ import annotations

import gc
from contextlib import ExitStack

from executorch.exir import ExecutorchProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails
from torch.fx import GraphModule

from pipeline.backends import Backend, edge_operators, make_passes
from pipeline.compile.edge_config import adapt_edge_config, make_edge_config
from pipeline.compile.emit import make_emission_config
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.compile.ranges import kernel_guards
from pipeline.features.passes.loading import load_passes
from pipeline.features.quantization.quantize import quantize
from pipeline.features.to_backend.registration import preprocess_function
from pipeline.plan.plan import Plan
from pipeline.program.archive import load_program
from pipeline.program.inputs import load_inputs
from pipeline.run.build.load import load_examples


def joint_call(plan: Plan, package: str) -> ExecutorchProgramManager:
    keeps = next(iter(plan.config(package).methods.values())).edge.keep_ranges
    with kernel_guards(keeps):
        return _joint_call(plan, package)


def _joint_call(plan: Plan, package: str) -> ExecutorchProgramManager:
    methods, root = plan.config(package).methods, plan.workspace.root
    config, sources, store = plan.config(package), plan.methods(package), plan.workspace.store
    programs = {name: load_program(m.archive, m.entry) for name, m in sources.items()}
    if any(backend.name == "mlx" for backend in config.backends(methods)):
        # MLX names its data by a hash of the program's text, which contains files and lines.
        for program in programs.values():
            for module in program.graph_module.modules():
                for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                    node.meta.pop("stack_trace", None)
    for name, method in config.methods.items():
        if method.quantize is not None:
            source = sources[name]
            calibration = []
            if method.quantize.calibrates:
                calibration = [
                    inputs for blob in source.batches for inputs in load_inputs(store.read(blob))
                ] or load_examples(source, store)
            programs[name] = quantize(programs[name], method.quantize, calibration)
    partitioners = {
        name: make_filtered_partitioners(methods[name].located(root), methods[name].modules)
        for name in programs
    }
    used = {b.backend_id: b for b in config.backends(methods)}.values()
    # ExecuTorch knows classes only. These live as long as this call.
    classes = [_as_class(b) for b in used if b.preprocessing.function]
    with ExitStack() as contexts:
        for backend in used:
            contexts.enter_context(backend.preprocessing.around())
        edge = to_edge_transform_and_lower(
            programs,
            partitioner=partitioners,
            constant_methods={
                **plan.models.constants(plan.export(package)),
                **config.constant_methods,
            }
            or None,
            compile_config=make_edge_config(
                adapt_edge_config(next(iter(methods.values())).edge, used), edge_operators(used)
            ),
            transform_passes={
                n: [
                    *load_passes(methods[n].edge.passes, root),
                    *make_passes(methods[n].located(root)),
                ]
                for n in programs
            },
        )
    after = {n: load_passes(methods[n].edge.passes_after_delegation, root) for n in programs}
    if after := {name: each for name, each in after.items() if each}:
        edge = edge.transform(after)
    classes.clear()
    gc.collect()
    own = {name: edge.exported_program(name) for name in edge.methods}
    return edge.to_executorch(
        make_emission_config(
            config.emit,
            load_passes(config.emit.passes, root),
            own,
            {name: method.emit for name, method in methods.items()},
        )
    )


def _as_class(backend: Backend) -> type[BackendDetails]:
    """Return the class that ExecuTorch expects for a backend that is only a preprocess function."""
    function = staticmethod(preprocess_function(backend.backend_id))
    return type(backend.backend_id, (BackendDetails,), {"preprocess": function})
