"""Each remedy is followed: what fails is explained by it, and passes once the advice is taken.

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
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, register_dataclass
from torch.utils import _pytree as pytree

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.compile.quantize import quantize
from pipeline.compile.steps import timed_steps
from pipeline.config.models import MethodConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.program.inputs import InputSet
from pipeline.program.patching import replaced
from pipeline.run.explain_error import explain_error
from pipeline.run.stages import Stages
from pipeline.store import remedies
from pipeline.store.remedies import MACHINE, REMEDIES
from tests.support.configs import parse_config

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
XNNPACK = {"partitioners": ["xnnpack"]}
INT8 = {"quantize": {"quantizer": "coreml"}}


class Module(nn.Module):
    """Computes what a function of it and its inputs gives."""

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
    """Export, lower and emit a module as a config has it, run it, and compare it with the module.

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
        lowered = lower({"run": program}, {"run": partitioners}, edge=config.edge)
        pte = bytes(emit(lowered).buffer)
    if not runs:
        return
    actual = Package(PackageFiles("p.pte", pte)).run("run", list(inputs))
    expected = pytree.tree_leaves(module(*inputs))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@dataclass(frozen=True)
class Case:
    """What fails for a cause, and, for each way that the advice names, what passes then."""

    fails: Callable[[], object]
    passes: Sequence[Callable[[], object]]


def case(fails: Callable[[], object], *passes: Callable[[], object]) -> Case:
    return Case(fails, passes)


def linear() -> None:
    build(nn.Linear(8, 8).requires_grad_(False), **XNNPACK)


def lacking(lack: Callable[[], object]) -> Case:
    """What a machine lacks while XNNPACK preprocesses, and has later."""

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
        while True:  # what fits is written
            file.write(b"0" * 10)


def open_many() -> None:
    with limited(resource.RLIMIT_NOFILE, 3):
        os.open(os.devnull, os.O_RDONLY)


def write_to_full_disk() -> None:
    """Write as torch does, which raises an error of its own."""
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
    """Import what an exporter imports, where that stands beside it."""
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
    """Lower an operator of one's own, with or without an out variant."""
    name = "double" if out else "twice"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2, "CompositeExplicitAutograd")
    if out:
        library.define(f"{name}.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl(f"{name}.out", lambda x, *, out: out.copy_(x * 2), "CompositeExplicitAutograd")
    build(lambda self, x: getattr(torch.ops.remedies, name)(x), runs=False)


def steps(self, x):
    """Double while it is small, in a loop of at most 20 steps."""
    for _ in range(20):
        x = torch.where(x.abs().max() < 100, x * 2, x)
    return x


def doubled_in_a_loop(self, x):
    return while_loop(lambda x: x.abs().max() < 100, lambda x: (x * 2,), (x,))[0]


def doubled_by_the_app() -> None:
    """Call a method that computes one step and says whether to go on."""
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


def coreml(module: nn.Module, *inputs: Any, version: str = "", **data: Any) -> Callable[[], None]:
    options = {"minimum_deployment_target": version} if version else {}
    module = module.eval().requires_grad_(False)
    return partial(
        build, module, *inputs, runs=False, partitioners=[{"coreml": {**options}}], **data
    )


def scaled(self, x):
    self.scale.add_(1)
    return x * self.scale


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(1, 4))

    def forward(self, x):
        self.sum.add_(x)
        return self.sum * 2


PERMUTED = torch.randn(2, 3, 4).permute(2, 0, 1)
COUNT = torch.tensor(5)
LIBRARY = torch.library.Library("remedies", "DEF")
EXCEPTIONS = {"edge": {"core_aten_ops_exceptions": ["aten.cummax.default"]}}
UNCHECKED = {"edge": {"check_ir_validity": False}}
TORCHAO = {"quantize": {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int4_weight"}}
IMAGE = torch.randn(1, 3, 8, 8)

CASES: dict[str, Case] = {
    "disk": lacking(write_to_full_disk),
    "file size": lacking(write_much),
    "memory": lacking(lambda: bytearray(1 << 60)),
    "open files": lacking(open_many),
    "permission": lacking(refuse),
    "input or output": lacking(read_broken_disk),
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
    "dtypes": case(
        partial(build, lambda self, x: x.to(torch.uint32).float(), X.abs()),
        partial(build, lambda self, x: x.to(torch.int64).float(), X.abs()),
        partial(build, lambda self, x: x.to(torch.uint32).float(), runs=False, **UNCHECKED),
    ),
    "values that decide": case(
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
    "no upper bound": case(
        partial(build, lambda self, n: torch.arange(n.item()), COUNT),
        partial(
            build,
            lambda self, n: (torch._check(n.item() <= 9), torch.arange(n.item()))[1],
            COUNT,
        ),
    ),
    "type of an output": case(
        returning(Unregistered),
        returning(lambda value: (value, value)),
        returning(lambda value: [value]),
        returning(lambda value: {"value": value}),
        registered,
    ),
    "named tuple": case(
        returning(Named), returning(lambda value: (value,)), returning(lambda value: [value])
    ),
    "name of a class": case(nameless, registered),
    "text as an output": case(
        partial(build, lambda self, x: (x + 1, "text")), partial(build, lambda self, x: (x + 1, 1))
    ),
    "gradients": case(
        partial(build, Module(scaled, scale=nn.Parameter(torch.zeros(8)))),
        partial(build, Module(scaled, scale=torch.zeros(8)).requires_grad_(False)),
    ),
    "module to import": case(import_beside),
    "part of a library": case(
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
    "kernel": case(
        partial(build, lambda self, x: torch.cummax(x, 0)[0], **EXCEPTIONS),
        partial(build, lambda self, x: torch.stack([x[: n + 1].amax(0) for n in range(4)])),
    ),
    "CUDA": case(
        partial(build, lambda self, x: x + torch.ones(8).cuda()),
        partial(build, lambda self, x: x + torch.ones(8)),
    ),
    "while_loop": case(
        partial(build, doubled_in_a_loop), partial(build, steps), doubled_by_the_app
    ),
    "Core ML int8": case(
        coreml(nn.Conv2d(3, 4, 3), IMAGE, **INT8),
        coreml(nn.Conv2d(3, 4, 3), IMAGE, version="ios17", **INT8),
    ),
    "Core ML version": case(
        coreml(Counter(), torch.ones(1, 4)), coreml(Counter(), torch.ones(1, 4), version="ios18")
    ),
    "operator of a backend": case(prelu, partial(prelu, ["0"])),
}
SLOW = {"Core ML int8", "Core ML version", "quantized, not delegated", "while_loop"}


def test_every_remedy_is_followed():
    assert CASES.keys() == {remedy.name for remedy in REMEDIES}


def explain(fails: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        fails()
    return explain_error(caught.value, Path(__file__).parents[2])


def pattern_of(text: str) -> str:
    """The text of a remedy, with any words where it names parts of the error."""
    return re.escape(text.format_map(defaultdict(lambda: "ANY"))).replace("ANY", ".+")


@pytest.mark.parametrize(
    "remedy",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each.name in SLOW else [], id=each.name)
        for each in REMEDIES
    ],
)
def test_what_fails_passes_once_the_advice_is_taken(remedy, tmp_path):
    followed = CASES[remedy.name]
    text = explain(followed.fails)
    assert re.search(rf"; {pattern_of(remedy.text)}$", text), text
    for passes in followed.passes:
        passes()
    if remedy.name == "module to import":
        import_beside(tmp_path)


@pytest.mark.parametrize("remedy", MACHINE, ids=lambda each: each.name)
def test_what_a_machine_lacks_says_nothing_of_operators(remedy):
    text = explain(CASES[remedy.name].fails)
    assert "preprocess XnnpackBackend: " in text and "took an operator" not in text


def normalized_qr(self, x):
    return self.norm(torch.linalg.qr(x)[0])


def qr_of_normalized(self, x):
    return torch.linalg.qr(self.norm(x))[0]


@pytest.mark.parametrize("compute", [normalized_qr, qr_of_normalized])
def test_operators_of_two_causes_get_the_advice_of_each(compute):
    text = explain(partial(build, Module(compute, norm=nn.BatchNorm1d(4)), X[:, :4]))
    assert text.count("call `.eval()` on the module") == 1
    assert "core_aten_ops_exceptions: [aten.linalg_qr.default]}`" in text


def test_a_name_that_a_library_lacks_is_no_module_to_install():
    text = explain(partial(import_name_of_torch, "LayerOfNobody"))
    assert "the torch that is installed lacks it" in text and "install torch into" not in text


def fail_after(handled: OSError) -> None:
    """Fail for something else after an error that was expected, and handled."""
    try:
        raise handled
    except OSError:
        raise NotImplementedError("no such operator")  # noqa: B904


def test_only_a_cause_is_mended():
    """Looking for a file that may be missing is none; running out of space always is."""
    missing = partial(fail_after, PermissionError(errno.EACCES, "Permission denied"))
    assert explain(lacking(missing).fails).endswith("(`doit backends` lists them)")
    full = partial(fail_after, OSError(errno.ENOSPC, "No space left on device"))
    assert "free disk space" in explain(lacking(full).fails)
    for without in (
        lambda: subprocess.run(["false"], check=True),
        lambda: subprocess.run(["tool-that-nobody-has"]),
    ):
        text = explain(lacking(without).fails)
        assert "preprocess XnnpackBackend: " in text and "took an operator" not in text


def test_a_tool_that_found_no_room_has_that_cause(monkeypatch):
    """It says so in the log alone."""
    monkeypatch.setattr(remedies, "is_full", lambda folder: True)
    text = explain(lacking(lambda: subprocess.run(["false"], check=True)).fails)
    assert "free disk space" in text
