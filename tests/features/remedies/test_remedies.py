"""Each remedy is tried: it explains a failure, and following its advice makes the case pass.

A remedy without a case fails `test_every_remedy_is_followed`.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, register_dataclass
from torch.utils import _pytree as pytree

from pipeline.compile.edge_config import make_edge_config
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.compile.steps import timed_steps
from pipeline.config.models import MethodConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.quantization.quantize import quantize
from pipeline.features.remedies import remedies
from pipeline.features.remedies.explain_error import explain_error
from pipeline.features.remedies.remedies import add_remedy
from pipeline.features.remedies.table import MACHINE, REMEDIES
from pipeline.program.inputs import InputSet
from pipeline.program.patching import replaced
from pipeline.run.stages import Stages
from pipeline.store.errors import describe_error
from tests.support import rejected
from tests.support.buffers import Added, Copied, Given, Used, UsedCopy
from tests.support.configs import parse_config

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
XNNPACK = {"partitioners": ["xnnpack"]}
INT8 = {"quantize": {"quantizer": "coreml"}}


class Module(nn.Module):
    """Computes the result of a function of the module and its inputs."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs):
        return self.compute(self, *inputs)


def method(**data: Any) -> MethodConfig:
    config = {"model": "m", "methods": {"run": {"partitioners": [], **data}}}
    return parse_config("p", config, "p.yaml").methods["run"]


def build(
    module: nn.Module | Callable[..., Any],
    *inputs: Any,
    runs: bool = True,
    sizes: Any = None,
    **data: Any,
) -> None:
    """Export, lower and emit a module as a config would, run it, and compare it with the module.

    Args:
        runs: whether this machine has the kernels and delegates.
        sizes: `dynamic_shapes` of the export.
    """
    module = module if isinstance(module, nn.Module) else Module(module)
    config, inputs = method(**data), inputs or (X,)
    program = export(module, inputs, dynamic_shapes=sizes)
    if config.quantize is not None:
        program = quantize(program, config.quantize, [InputSet(inputs)])
    partitioners = make_filtered_partitioners(config.partitioners, config.modules)
    with timed_steps(Stages().step):
        lowered = lower({"run": program}, {"run": partitioners}, edge=make_edge_config(config.edge))
        graph = lowered.exported_program("run").graph
        assert not partitioners or "executorch_call_delegate" in str(graph)
        pte = bytes(emit(lowered).buffer)
    if not runs:
        return
    actual = Package(PackageFiles("p.pte", pte)).run("run", list(inputs))
    expected = pytree.tree_leaves(module(*inputs))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@dataclass(frozen=True)
class Case:
    """A failure for one cause, and what passes for each way that the advice names."""

    fails: Callable[[], object]
    passes: Sequence[Callable[[], object]]


def case(fails: Callable[[], object], *passes: Callable[[], object]) -> Case:
    return Case(fails, passes)


def gradient(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a sum of squares, computed with gradients enabled."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad((leaf * leaf).sum(), leaf)[0]


def gradient_as_recorded(self: nn.Module | None, x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((leaf * leaf).sum(), leaf)[0]


def without_gradients(compute: Callable[..., Any]) -> None:
    """Call a function as references are called, with gradients disabled."""
    with torch.no_grad():
        compute(None, X)


def linear() -> None:
    build(nn.Linear(8, 8).requires_grad_(False), **XNNPACK)


def lacking(lack: Callable[[], object]) -> Case:
    """Return a case that lacks something while XNNPACK preprocesses, and has it later."""

    def fail(*given: Any) -> None:
        lack()

    def fails() -> None:
        with replaced(XnnpackBackend, "preprocess", lambda original: staticmethod(fail)):
            linear()

    return case(fails, linear)


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)


def write_much() -> None:
    with limited(resource.RLIMIT_FSIZE, 10), tempfile.TemporaryFile(buffering=0) as file:
        while True:  # writes as much as fits
            file.write(b"0" * 10)


def open_many() -> None:
    with limited(resource.RLIMIT_NOFILE, 3):
        os.open(os.devnull, os.O_RDONLY)


def write_to_full_disk() -> None:
    """Write as torch does, which raises a different error."""
    with open("/dev/full", "wb", buffering=0) as file:
        try:
            file.write(b"0")
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0")  # noqa: B904


def refuse() -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/store/blob")


def read_broken_disk() -> None:
    with open("/proc/self/mem", "rb", buffering=0) as file:
        file.read(1)


class Named(NamedTuple):
    value: torch.Tensor


@dataclass
class Unregistered:
    value: torch.Tensor


@dataclass
class Registered:
    value: torch.Tensor


@dataclass
class Nameless:
    value: torch.Tensor


def returning(kind: Callable[[torch.Tensor], object]) -> Callable[[], object]:
    return partial(build, lambda self, x: kind(x + 1))


def nameless() -> None:
    register_dataclass(Nameless)
    returning(Nameless)()


@cache
def register() -> None:
    register_dataclass(Registered, serialized_type_name="tests.Registered")


def registered() -> None:
    register()
    returning(Registered)()


def import_beside(folder: Path | None = None) -> None:
    """Import a module that an exporter imports from next to it."""
    if folder is None:
        import own_blocks_of_nobody  # noqa: F401

        return
    (folder / "own_blocks_of_nobody.py").write_text("")
    sys.path.insert(0, str(folder))
    try:
        import_beside()
    finally:
        sys.path.remove(str(folder))


def import_from_torch(name: str) -> None:
    importlib.import_module(f"torch.{name}")


def import_name_of_torch(name: str) -> None:
    exec(f"from torch.nn import {name}", {})


def twice(library: torch.library.Library, out: bool) -> None:
    """Lower a custom operator, with or without an out variant."""
    name = "double" if out else "twice"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2, "CompositeExplicitAutograd")
    if out:
        library.define(f"{name}.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl(f"{name}.out", lambda x, *, out: out.copy_(x * 2), "CompositeExplicitAutograd")
    build(lambda self, x: getattr(torch.ops.remedies, name)(x), runs=False)


def steps(self, x):
    """Double a value while it is small, in a loop of at most 20 steps."""
    for _ in range(20):
        x = torch.where(x.abs().max() < 100, x * 2, x)
    return x


def doubled_in_a_loop(self, x):
    return while_loop(lambda x: x.abs().max() < 100, lambda x: (x * 2,), (x,))[0]


def doubled_by_the_app() -> None:
    """Call a method that computes one step and returns whether to continue."""
    build(lambda self, x: (x * 2, (x * 2).abs().max() < 100))


def prelu(modules: list[str] | None = None) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.PReLU()).requires_grad_(False)
    build(module, **XNNPACK, **({"modules": modules} if modules else {}))


def conv(normalize: nn.Module) -> Callable[[], None]:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), normalize).requires_grad_(False)
    return partial(build, module, torch.ones(2, 3, 8, 8))


def magnitude(self, x):
    spectrum = torch.view_as_real(torch.fft.rfft(x))
    return spectrum.square().sum(-1).sqrt()


def delegated(
    backend: str, module: nn.Module, *inputs: Any, options: Any = None, **data: Any
) -> Callable[[], None]:
    """Return a build for a backend whose delegates can't run on this machine."""
    partitioners = [{backend: options or {}}]
    module = module.eval().requires_grad_(False)
    return partial(build, module, *inputs, runs=False, partitioners=partitioners, **data)


coreml = partial(delegated, "coreml")
vulkan = partial(delegated, "vulkan")


def portable(kind: type[rejected.Layer], **data: Any) -> Callable[[], None]:
    """Return a build whose package runs ExecuTorch's portable kernels."""
    return partial(build, kind().eval().requires_grad_(False), rejected.X, **data)


def scaled(self, x):
    self.scale.add_(1)
    return x * self.scale


def normalize_half(self, x):
    return F.batch_norm(x, self.mean, self.var)


def normalize_float(self, x):
    return F.batch_norm(x.float(), self.mean, self.var).half()


PERMUTED = torch.randn(2, 3, 4).permute(2, 0, 1)
COUNT = torch.tensor(5)
LIBRARY = torch.library.Library("remedies", "DEF")
EXCEPTIONS = {"edge": {"core_aten_ops_exceptions": ["aten.cummax.default"]}}
UNCHECKED = {"edge": {"check_ir_validity": False}}
TORCHAO = {"quantize": {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int4_weight"}}
IMAGE = torch.randn(1, 3, 8, 8)
HALF, STATISTICS = IMAGE.half(), {"mean": torch.zeros(3), "var": torch.ones(3)}
LAST = IMAGE.to(memory_format=torch.channels_last)
WINDOW = torch.ones(1, 2)
IOS17, IOS18 = ({"minimum_deployment_target": target} for target in ("ios17", "ios18"))
INT4 = {"quantize": {"quantizer": "torchao", "scheme": "int4_weight_only"}}


def groups(size: int) -> dict[str, object]:
    scheme = "int8_dynamic_activation_int8_weight"
    return {"quantize": {"quantizer": "torchao", "scheme": scheme, "group_size": size}}


CASES: dict[str, Case] = {
    "disk": lacking(write_to_full_disk),
    "file size": lacking(write_much),
    "memory": lacking(lambda: bytearray(1 << 60)),
    "open files": lacking(open_many),
    "permission": lacking(refuse),
    "I/O": lacking(read_broken_disk),
    "training mode": case(
        conv(nn.BatchNorm2d(4)),
        conv(nn.BatchNorm2d(4).eval()),
    ),
    "not core ATen": case(
        partial(build, lambda self, x: torch.cummax(x, 0)[0]),
        partial(build, lambda self, x: torch.cummax(x, 0)[0], runs=False, **EXCEPTIONS),
        partial(build, lambda self, x: torch.stack([x[: n + 1].amax(0) for n in range(4)])),
    ),
    "complex numbers": case(
        partial(build, lambda self, x: torch.fft.rfft(x).abs()),
        partial(build, magnitude),
    ),
    "mismatched dtypes": case(
        partial(build, lambda self, x: x.to(torch.uint32).float(), X.abs()),
        partial(build, lambda self, x: x.to(torch.int64).float(), X.abs()),
        partial(build, lambda self, x: x.to(torch.uint32).float(), runs=False, **UNCHECKED),
    ),
    "torch.func": case(
        partial(build, lambda self, x: torch.vmap(torch.func.grad(lambda y: (y * y).sum()))(x)),
        partial(build, gradient),
        partial(build, lambda self, x: 2 * x),
    ),
    "reference without gradients": case(
        partial(without_gradients, gradient_as_recorded),
        partial(without_gradients, gradient),
    ),
    "data-dependent branch": case(
        partial(build, lambda self, x: x if x.sum() > 0 else -x),
        partial(build, lambda self, x: torch.where(x.sum() > 0, x, -x)),
        partial(
            build, lambda self, x: torch.cond(x.sum() > 0, lambda x: x + 0, lambda x: -x, (x,))
        ),
    ),
    "violated constraints": case(
        partial(build, lambda self, x: x[:, :4] + x[:, 4:], sizes=(({1: Dim("n", max=64)},),)),
        partial(build, lambda self, x: x[:, :4] + x[:, 4:], sizes=(({1: 8},),)),
    ),
    "unbounded size": case(
        partial(build, lambda self, n: torch.arange(n.item()), COUNT),
        partial(
            build,
            lambda self, n: (torch._check(n.item() <= 9), torch.arange(n.item()))[1],
            COUNT,
        ),
    ),
    "unknown output type": case(
        returning(Unregistered),
        returning(lambda value: (value, value)),
        returning(lambda value: [value]),
        returning(lambda value: {"value": value}),
        registered,
    ),
    "named tuple": case(
        returning(Named), returning(lambda value: (value,)), returning(lambda value: [value])
    ),
    "class without a serialized name": case(nameless, registered),
    "string output": case(
        partial(build, lambda self, x: (x + 1, "text")), partial(build, lambda self, x: (x + 1, 1))
    ),
    "parameter changed in place": case(
        partial(build, Module(scaled, scale=nn.Parameter(torch.zeros(8)))),
        partial(build, Module(scaled, scale=torch.zeros(8)).requires_grad_(False)),
    ),
    "missing module": case(import_beside),
    "missing part of a library": case(
        partial(import_from_torch, "scan_of_nobody"), partial(import_from_torch, "nn")
    ),
    "numpy": case(
        partial(build, lambda self, x: torch.from_numpy(x.numpy() + 1)),
        partial(build, lambda self, x: x + 1),
    ),
    "dimension order": case(
        partial(build, lambda self, x: x.to(torch.float64), PERMUTED),
        partial(build, lambda self, x: x.to(torch.float64), PERMUTED.contiguous()),
    ),
    "quantized, not delegated": case(
        partial(build, nn.Linear(64, 64), torch.ones(1, 64), **TORCHAO),
        partial(build, nn.Linear(64, 64), torch.ones(1, 64), runs=False, **TORCHAO, **XNNPACK),
    ),
    "out variant": case(partial(twice, LIBRARY, False), partial(twice, LIBRARY, True)),
    "memory format of a copy": case(
        partial(build, lambda self, x: x.contiguous(), LAST, edge={"skip_dim_order": True}),
        partial(build, lambda self, x: x.contiguous(), LAST),
    ),
    "channels last": case(
        portable(rejected.Mixed),
        portable(rejected.MixedFixed),
        portable(rejected.JoinedFixed),
        portable(rejected.NormedFixed),
        portable(rejected.SummedFixed),
        portable(rejected.WeightedFixed),
    ),
    "3-D convolution": case(
        portable(rejected.Volumes),
        coreml(rejected.Volumes(), rejected.X),
        portable(rejected.VolumesFixed),
    ),
    "negative padding": case(portable(rejected.Padded), portable(rejected.PaddedFixed)),
    "rejected argument": case(
        partial(build, Module(normalize_half, **STATISTICS), HALF),
        vulkan(Module(normalize_half, **STATISTICS), HALF),
        partial(build, Module(normalize_float, **STATISTICS), HALF),
    ),
    "unsupported dtype": case(
        partial(build, lambda self, x: x.topk(2)[0], X > 0),
        partial(build, lambda self, x: x.float().topk(2)[0].bool(), X > 0),
    ),
    "missing kernel": case(
        partial(build, lambda self, x: torch.cummax(x, 0)[0], **EXCEPTIONS),
        partial(build, lambda self, x: torch.stack([x[: n + 1].amax(0) for n in range(4)])),
    ),
    "Core ML state": case(
        coreml(Added(), WINDOW),
        coreml(Added(), WINDOW, options=IOS18),
        coreml(Added(), WINDOW, options={"take_over_mutable_buffer": False}),
    ),
    "delegated buffer returned": case(
        coreml(Given(), WINDOW, options=IOS18),
        coreml(Copied(), WINDOW, options=IOS18),
        vulkan(Copied(), WINDOW),
    ),
    "delegated buffer used elsewhere": case(vulkan(Used(), WINDOW), vulkan(UsedCopy(), WINDOW)),
    "CUDA": case(
        partial(build, lambda self, x: x + torch.ones(8).cuda()),
        partial(build, lambda self, x: x + torch.ones(8)),
    ),
    "while_loop": case(
        partial(build, doubled_in_a_loop), partial(build, steps), doubled_by_the_app
    ),
    "Core ML int8": case(
        coreml(nn.Conv2d(3, 4, 3), IMAGE, **INT8),
        coreml(nn.Conv2d(3, 4, 3), IMAGE, options=IOS17, **INT8),
        coreml(nn.Conv2d(3, 4, 3), IMAGE, options=IOS17, quantize={"quantizer": "xnnpack"}),
        coreml(nn.Linear(8, 8), X, options=IOS17, quantize={"quantizer": "vulkan"}),
    ),
    "Core ML version": case(
        coreml(nn.Linear(64, 64), torch.ones(1, 64), **INT4),
        coreml(nn.Linear(64, 64), torch.ones(1, 64), options=IOS18, **INT4),
    ),
    "XNNPACK int8 groups": case(
        partial(build, nn.Linear(64, 64), torch.ones(1, 64), **XNNPACK, **groups(32)),
        partial(build, nn.Linear(64, 64), torch.ones(1, 64), runs=False, **XNNPACK, **groups(0)),
    ),
    "operator that a backend can't compile": case(prelu, partial(prelu, ["0"])),
}


def test_every_remedy_is_followed():
    assert CASES.keys() == {remedy.name for remedy in REMEDIES}


def explain(fails: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        fails()
    return explain_error(caught.value, Path(__file__).parents[3])


def pattern_of(text: str) -> str:
    """Return the pattern of a remedy's text, with any words where it names parts of the error."""
    return re.escape(text.format_map(defaultdict(lambda: "ANY"))).replace("ANY", ".+")


@pytest.mark.parametrize(
    "remedy",
    [
        pytest.param(each, marks=[] if each in MACHINE else [pytest.mark.slow], id=each.name)
        for each in REMEDIES
    ],
)
def test_what_fails_passes_once_the_advice_is_taken(remedy, tmp_path):
    followed = CASES[remedy.name]
    text = explain(followed.fails)
    assert re.search(rf"; {pattern_of(remedy.text)}$", text), text
    for passes in followed.passes:
        passes()
    if remedy.name == "missing module":
        import_beside(tmp_path)


@pytest.mark.parametrize("remedy", MACHINE, ids=lambda each: each.name)
def test_what_a_machine_lacks_says_nothing_of_operators(remedy):
    text = explain(CASES[remedy.name].fails)
    assert "preprocess XnnpackBackend: " in text and "accepted an operator" not in text


@pytest.mark.slow
def test_core_ml_says_in_other_words_too_what_version_it_needs():
    text = explain(coreml(Module(normalize_half, **STATISTICS), HALF))
    assert text.endswith("`coreml: {minimum_deployment_target: ios16}`")


def normalized_qr(self, x):
    return self.norm(torch.linalg.qr(x)[0])


def qr_of_normalized(self, x):
    return torch.linalg.qr(self.norm(x))[0]


@pytest.mark.parametrize("compute", [normalized_qr, qr_of_normalized])
def test_operators_of_two_causes_get_the_advice_of_each(compute):
    text = explain(partial(build, Module(compute, norm=nn.BatchNorm1d(4)), X[:, :4]))
    assert text.count("call `.eval()` on the module") == 1
    assert "core_aten_ops_exceptions: [aten.linalg_qr.default]}`" in text


@pytest.mark.parametrize("training", [False, True])
def test_rrelu_is_not_lowered_in_either_mode(training):
    text = explain(partial(build, Module(lambda self, x: F.rrelu(x, training=training)), X))
    assert ".eval()" not in text and "replace it with other operators" in text


def test_a_name_that_a_library_lacks_is_no_module_to_install():
    text = explain(partial(import_name_of_torch, "LayerOfNobody"))
    assert "the installed torch doesn't have it" in text and "install torch into" not in text


def test_a_module_that_this_package_hides_is_no_part_of_a_library():
    text = explain(lambda: importlib.import_module("pipeline.steps"))
    assert "the installed pipeline doesn't have it" not in text and "No module named" in text


def fail_after(handled: OSError) -> None:
    """Fail for another reason after an expected error that was handled."""
    try:
        raise handled
    except OSError:
        raise NotImplementedError("no such operator")  # noqa: B904


def test_only_a_cause_is_mended():
    """Looking for an optional file isn't a cause; running out of space always is."""
    missing = partial(fail_after, PermissionError(errno.EACCES, "Permission denied"))
    assert explain(lacking(missing).fails).endswith("(`doit backends` lists them)")
    full = partial(fail_after, OSError(errno.ENOSPC, "No space left on device"))
    assert "free disk space" in explain(lacking(full).fails)
    for without in (
        lambda: subprocess.run(["false"], check=True),
        lambda: subprocess.run(["tool-that-nobody-has"]),
    ):
        text = explain(lacking(without).fails)
        assert "preprocess XnnpackBackend: " in text and "accepted an operator" not in text


def test_a_tool_that_found_no_room_has_that_cause(monkeypatch):
    """It says so only in the log."""
    monkeypatch.setattr(remedies, "is_full", lambda folder: True)
    text = explain(lacking(lambda: subprocess.run(["false"], check=True)).fails)
    assert "free disk space" in text


def test_an_archive_that_exceeds_the_limit_on_file_sizes(tmp_path):
    """Torch's error doesn't say why it can't write."""
    with pytest.raises(RuntimeError) as caught, limited(resource.RLIMIT_FSIZE, 1 << 16):
        torch.save(torch.zeros(1 << 16), tmp_path / "big.pt")
    text = describe_error(caught.value)
    advice = "; raise the limit on file sizes (`ulimit -f`)"
    assert not add_remedy(text, error=caught.value).endswith(advice)  # there is no limit now
    with limited(resource.RLIMIT_FSIZE, 1 << 16):
        assert add_remedy(text, error=caught.value).endswith(advice)
