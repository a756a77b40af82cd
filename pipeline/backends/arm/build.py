"""Arm's partitioners and quantizers, made of a config's options.

TOSA's partitioner is mended on the way: what it makes follows no set's order, it leaves alone what
its backend then fails on, and a method of which it can take nothing, because Arm's quantizer saw
nothing of it, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.common.pipeline_config import (
    LeakyReLULoweringConfig,
    QuantizeInfConfig,
    SoftmaxDecompositionConfig,
)
from executorch.backends.arm.constants import Q_OPS
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.ethosu import backend as ethosu_backend
from executorch.backends.arm.quantizer import (
    EthosUQuantizer,
    TOSAQuantizer,
    VgfQuantizer,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from executorch.backends.arm.quantizer.arm_quantizer import get_uint8_io_quantization_config
from executorch.backends.arm.quantizer.arm_quantizer_utils import NodeFinder
from executorch.backends.arm.tosa import partitioner as upstream
from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase
from torchao.quantization.pt2e.quantizer import Quantizer

from pipeline.backends.arm import ArmScheme, PassOptions
from pipeline.backends.arm.ethos_u import OWN_INI, EthosUOptions, EthosUQuantize
from pipeline.backends.arm.vgf import VgfOptions, VgfQuantize
from pipeline.store import digest
from pipeline.store.errors import PipelineError

_PASSES = tuple(PassOptions.model_fields)


def compile_spec(options: Any) -> ArmCompileSpec:
    """That of a partitioner's options or a quantizer's."""
    if isinstance(options, EthosUOptions):
        flags = list(options.extra_flags) if options.extra_flags else None
        ini = options.config_ini
        spec = EthosUCompileSpec(
            options.target,
            options.system_config,
            options.memory_mode,
            flags,
            ini if ini == OWN_INI else _known_ini(Path(ini)),
        )
    elif isinstance(options, EthosUQuantize):
        spec = EthosUCompileSpec(options.target)
    elif isinstance(options, VgfOptions):
        spec = VgfCompileSpec(options.tosa_spec, list(options.compiler_flags or ()))
    elif isinstance(options, VgfQuantize):
        spec = VgfCompileSpec(options.tosa_spec)
    else:
        spec = TosaCompileSpec(options.tosa_spec)
    _set_passes(spec, options)
    return spec


# Contents of users' own files for vela, by the names that compile specs have of them. A name is
# made of the content: compile specs stand in the package, and no path of this machine may.
_inis: dict[str, bytes] = {}


def _known_ini(path: Path) -> str:
    content = path.read_bytes()
    name = f"{digest.of_bytes(content)}.ini"
    _inis[name] = content
    return name


@contextmanager
def own_inis() -> Iterator[None]:
    """Within it, vela reads users' own files by the names that compile specs have of them."""
    original = ethosu_backend.vela_compile

    def compile_with(tosa: bytes, flags: list[str], **more: Any) -> bytes:
        with TemporaryDirectory() as folder:
            given = [_with_path(flag, Path(folder)) for flag in flags]
            return original(tosa, given, **more)

    ethosu_backend.vela_compile = compile_with
    try:
        yield
    finally:
        ethosu_backend.vela_compile = original


def _with_path(flag: str, folder: Path) -> str:
    name, _, value = flag.partition("=")
    if name != "--config" or value not in _inis:
        return flag
    path = folder / value
    path.write_bytes(_inis[value])
    return f"{name}={path}"


def _set_passes(spec: ArmCompileSpec, options: Any) -> None:
    """Leaves the spec as it is where nothing is said, as a plain script does."""
    if all(getattr(options, n) == type(options).model_fields[n].default for n in _PASSES):
        return
    config = spec._create_default_pipeline_config()
    if options.softmax is not None:
        config.softmax = SoftmaxDecompositionConfig[options.softmax.upper()]
    config.leaky_relu = LeakyReLULoweringConfig[options.leaky_relu.upper()]
    config.quantize_inf = QuantizeInfConfig(options.quantize_neg_inf, options.quantize_pos_inf)
    spec.set_pass_pipeline_config(config)


def make_partitioner(options: Any) -> TOSAPartitioner:
    spec = compile_spec(options)
    checks = [_LeftAlone(takes_int64=spec.tosa_spec.support_extension("int64"))]
    if isinstance(options, EthosUOptions):
        made, name, target = EthosUPartitioner(spec, checks), "ethos-u", f"target: {options.target}"
    else:
        target = f"tosa_spec: {options.tosa_spec}"
        if isinstance(options, VgfOptions):
            made, name = VgfPartitioner(spec, checks), "vgf"
        else:
            made, name = TOSAPartitioner(spec, checks), "tosa"
    made.partition = _mended(made, name, target)  # the classes are final
    return made


class _LeftAlone(OperatorSupportBase):
    """Says no to operators that TOSAPartitioner takes, and whose partitions TOSABackend then fails
    on with a traceback out of one of its passes. Bytes of what it lowers stay as they are."""

    def __init__(self, takes_int64: bool) -> None:
        super().__init__()
        self._takes_int64 = takes_int64

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        reads = not self._takes_int64 and _reads_int64_of_branch(node)
        return not reads and not _gives_no_dimensions(node)


def _reads_int64_of_branch(node: Node) -> bool:
    """Whether it reads an integer constant of a branch, such as the 2 of `x * 2`.

    In the outermost graph a constant is a placeholder, which goes into the partition and is folded.
    In a branch it is a `get_attr`, which stays outside, though upstream's check takes it for a
    constant as well: the partition would have an input of int64, which TOSA has not.
    """
    return any(i.op == "get_attr" and _dtype(i) == torch.int64 for i in node.all_input_nodes)


def _gives_no_dimensions(node: Node) -> bool:
    """Whether it takes the last dimensions of a tensor, as a sum over all of it does, and gives
    the result to a control flow, as a predicate, to the caller, or to be quantized. Where an
    operator of the partition reads it in floating point, upstream gives it dimensions again."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim():
        return False
    given = [i.meta.get("val") for i in node.all_input_nodes]
    return any(isinstance(v, torch.Tensor) and v.dim() for v in given) and any(
        user.op == "output"
        or user.target in Q_OPS
        or isinstance(user.target, torch._ops.HigherOrderOperator)
        for user in node.users
    )


def _dtype(node: Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def make_quantizer(config: Any) -> Quantizer:
    kinds = {"ethos-u": EthosUQuantizer, "vgf": VgfQuantizer, "tosa": TOSAQuantizer}
    quantizer = kinds[config.quantizer](compile_spec(config))
    made = _Mixed(quantizer, config) if config.mixed else quantizer
    quantizer.set_global(quantization(config))
    if config.io is not None:
        quantizer.set_io(_at_the_borders(config))
    return made


class _Mixed(Quantizer):
    """One of Arm's quantizers, each node of whose program is annotated by its own scheme.

    Upstream's `set_module_name` and `set_node_target` see what it has made of an operator, such as
    the sums and quotients of a softmax, and let the options of the method take what those of a
    module don't cover. Here nodes are told apart before that, and what they become is marked alike.
    """

    _MARK = "pte_pipeline.scheme"  # in `node.meta`, which upstream's passes copy

    def __init__(self, quantizer: TOSAQuantizer, config: Any) -> None:
        super().__init__()
        self._quantizer = quantizer
        self._config = config
        self._schemes = [None, *config.schemes()]  # the second is that of the method
        inner = quantizer.quantizer
        for number, scheme in enumerate(self._schemes):
            if number != 1:
                # A VgfQuantizer has a kind of its own, which it makes here only.
                quantizer.set_global(None if scheme is None else quantization(scheme))
                inner.set_node_finder(quantizer.global_config, _Marked(self._MARK, number))
        quantizer.set_global(quantization(config))
        inner.global_quantizer.node_finder = _Marked(self._MARK, 1)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        self._mark(model)
        return self._quantizer.transform_for_annotation(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        self._mark(model)
        annotated = self._quantizer.annotate(model)
        for node in annotated.graph.nodes:
            node.meta.pop(self._MARK, None)
        return annotated

    def validate(self, model: GraphModule) -> None:
        self._quantizer.validate(model)

    def _mark(self, model: GraphModule) -> None:
        """What is no call is of the method's scheme."""
        for node in model.graph.nodes:
            if self._MARK not in node.meta:
                call = node.op == "call_function"
                scheme = self._config.which(node) if call else self._schemes[1]
                node.meta[self._MARK] = self._schemes.index(scheme)


class _Marked(NodeFinder):
    def __init__(self, mark: str, number: int) -> None:
        self._mark = mark
        self._number = number

    def find_nodes(self, model: GraphModule) -> Iterator[Node]:
        return (node for node in model.graph.nodes if node.meta.get(self._mark) == self._number)


def _at_the_borders(config: Any) -> Any:
    """The options for inputs and outputs, of which only those of activations are looked at."""
    if config.io == "uint8":
        return get_uint8_io_quantization_config(**_least_scale(config, "eps"))
    kind = ArmScheme.model_construct(activations=config.io, eps=config.eps)
    return quantization(config if config.io == config.activations else kind)


def _least_scale(scheme: Any, name: str) -> dict[str, float]:
    return {} if scheme.eps is None else {name: scheme.eps}


def quantization(scheme: Any) -> Any:
    if scheme.activations == "int16":
        return get_symmetric_a16w8_quantization_config(
            is_per_channel=scheme.per_channel, **_least_scale(scheme, "epsilon")
        )
    return get_symmetric_quantization_config(
        is_per_channel=scheme.per_channel,
        act_qmin=scheme.act_qmin,
        act_qmax=scheme.act_qmax,
        weight_qmin=scheme.weight_qmin,
        weight_qmax=scheme.weight_qmax,
        **_least_scale(scheme, "eps"),
    )


def _mended(
    partitioner: TOSAPartitioner, name: str, target: str
) -> Callable[[ExportedProgram], PartitionResult]:
    original = partitioner.partition

    def partition(program: ExportedProgram) -> PartitionResult:
        _forget_constants_of_branches(program)
        with _components_in_order():
            result = original(program)
        integer_only = not partitioner.tosa_spec.support_float()
        if not result.partition_tags and integer_only and _is_float(program.graph_module):
            raise PipelineError(
                f"{name} takes operators that its own quantizer has seen, and the method has none, "
                "so nothing would be delegated; add "
                f"`quantize: {{quantizer: {name}, {target}}}` or leave {name} out"
            )
        # Partitions are lowered in the order of this mapping, which was made of a set.
        tags = dict(sorted(result.partition_tags.items(), key=lambda item: _number(item[0])))
        return PartitionResult(result.tagged_exported_program, tags)

    return partition


def _forget_constants_of_branches(program: ExportedProgram) -> None:
    """Leaves of what is computed from constants alone, in a branch, what the value is like instead
    of the value itself. Where a partition has such a one as an input, torch would run the passes'
    operators of TOSA on it, which have no kernels."""
    for node in _nodes(program.graph_module):
        value = node.meta.get("val")
        known = isinstance(value, FakeTensor) and value.constant is not None
        if known and node.op == "call_function" and node.graph is not program.graph:
            with value.fake_mode:
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype
                )


def _nodes(module: GraphModule) -> Iterator[Node]:
    """Those of its graph and of all branches."""
    for graph in module.modules():
        if isinstance(graph, GraphModule):
            yield from graph.graph.nodes


def _number(tag: str) -> int:
    return int(tag.removeprefix("tag"))


def _is_float(module: GraphModule) -> bool:
    """Whether it computes in floating point, and Arm's quantizer has seen nothing of it: without
    its mark TOSAPartitioner leaves operators alone, wherever the quantization came from."""
    nodes = [node for node in _nodes(module) if isinstance(node.target, EdgeOpOverload)]
    marked = ArmAnnotationInfo.CUSTOM_META_KEY
    if any(node.meta.get("custom", {}).get(marked, {}).get("quantized") for node in nodes):
        return False
    values = [node.meta.get("val") for node in nodes]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


@contextmanager
def _components_in_order() -> Iterator[None]:
    """Where a partition falls apart, TOSAPartitioner numbers the parts as a set of nodes, which
    hash by their addresses, happens to give them (executorch #19045). Within it, they are numbered
    as the graph goes."""
    original = upstream._find_connected_components

    def in_order(nodes: set[Node]) -> list[set[Node]]:
        graphs = {node.graph for node in nodes}
        places = {node: place for graph in graphs for place, node in enumerate(graph.nodes)}
        return sorted(original(nodes), key=lambda part: min(places[node] for node in part))

    upstream._find_connected_components = in_order
    try:
        yield
    finally:
        upstream._find_connected_components = original
