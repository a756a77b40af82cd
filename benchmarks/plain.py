"""The plain script: how to make such packages without a build system.

    python benchmarks/plain.py MODELS CONFIGS OUT PACKAGE...

For each package it loads the methods, quantizes those that the config says to, passes all to
`to_edge_transform_and_lower` with each method's partitioners, and writes the `.pte`: serially, in
one process. It imports nothing from the build system. It supports only the config keys that the
measured configs use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from executorch.backends.transforms.duplicate_dynamic_quant_chain import (
    DuplicateDynamicQuantChainPass,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch.export import Dim, ExportedProgram, export
from torch.export.pt2_archive._package import load_pt2
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def main(models: Path, configs: Path, out: Path, packages: list[str]) -> None:
    for package in packages:
        config = yaml.safe_load((configs / f"{package}.yaml").read_text(encoding="utf-8"))
        programs = load_pt2(str(models / f"{config['model']}.pt2")).exported_programs
        build(config, programs, out / package)
        print(package, flush=True)


def build(
    config: dict[str, Any],
    programs: dict[str, ExportedProgram],
    out: Path,
    calibration: Callable[[str], list[tuple[Any, ...]]] | None = None,
) -> None:
    """Write a package's `.pte`, and its `.ptd` if the config asks for one.

    Args:
        calibration: returns the inputs that the static quantization of a method observes; by
            default, those it was exported with.
    """
    methods = config["methods"]
    for name, program in programs.items():
        if (spec := methods[name].get("quantize")) is not None:
            batches = calibration(name) if calibration and not spec.get("dynamic") else []
            programs[name] = quantized(program, spec, batches)
    lowered = to_edge_transform_and_lower(
        programs,
        partitioner={name: partitioners(methods[name]["partitioners"]) for name in programs},
        constant_methods=config.get("constant_methods"),
    )
    emit = config.get("emit", {})
    made = lowered.to_executorch(
        ExecutorchBackendConfig(
            external_constants=emit.get("external_constants", False),
            memory_planning_pass=MemoryPlanningPass(**emit.get("memory_planning", {})),
        )
    )
    out.mkdir(parents=True)
    made.save(str(out / f"{out.name}.pte"))
    made.write_tensor_data_to_file(str(out))


def partitioners(specs: list[Any]) -> list[XnnpackPartitioner]:
    """Return the partitioners of `xnnpack` or `{xnnpack: options}`."""
    options = [spec["xnnpack"] if isinstance(spec, dict) else {} for spec in specs]
    return [XnnpackPartitioner(**each) for each in options]


def quantized(
    program: ExportedProgram, spec: dict[str, Any], batches: list[tuple[Any, ...]]
) -> ExportedProgram:
    """Quantize a program as in ExecuTorch's tutorials.

    It observes `batches`, or the inputs that the program was exported with if there are none.
    """
    dynamic = spec.get("dynamic", False)
    scheme = get_symmetric_quantization_config(spec.get("per_channel", True), is_dynamic=dynamic)
    quantizer = XNNPACKQuantizer().set_global(scheme)
    args, kwargs = program.example_inputs
    prepared = prepare_pt2e(program.module(check_guards=False), quantizer)
    with torch.no_grad():
        for batch in batches:
            prepared(*batch)
        if not batches:
            prepared(*args, **kwargs)
    converted = convert_pt2e(prepared)
    if dynamic:
        DuplicateDynamicQuantChainPass()(converted)
    move_exported_model_to_eval(converted)
    return export(converted, args, kwargs, dynamic_shapes=dynamic_shapes(program))


def dynamic_shapes(program: ExportedProgram) -> tuple[Any, ...]:
    """Return the dynamic shapes that the program was exported with; its arguments are tensors."""
    inputs = set(program.graph_signature.user_inputs)
    shapes = [n.meta["val"].shape for n in program.graph.nodes if n.name in inputs]
    return tuple({i: dim(program, s) for i, s in enumerate(shape)} for shape in shapes)


def dim(program: ExportedProgram, size: Any) -> Any:
    if not isinstance(size, torch.SymInt):
        return Dim.STATIC
    limits = program.range_constraints[size.node.expr]
    return Dim.AUTO(min=int(limits.lower), max=int(limits.upper))


if __name__ == "__main__":
    models, configs, out = map(Path, sys.argv[1:4])
    main(models, configs, out, sys.argv[4:])
