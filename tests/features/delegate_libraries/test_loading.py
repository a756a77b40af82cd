"""A delegate compiled here, loaded into the runtime of ExecuTorch's wheel."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import executorch
import pytest

from pipeline.features.delegate_libraries.libraries import VARIABLE
from pipeline.store.releases import installed_release
from tests.support.bench import REPOSITORY
from tests.support.matrix import in_tiers

# `MPSBackend` is in the catalogue, but not in this machine's runtime.
SOURCE = r"""
#include <executorch/runtime/backend/interface.h>
using namespace executorch::runtime;

struct Twice final : BackendInterface {
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(
      BackendInitContext&, FreeableBuffer*, ArrayRef<CompileSpec>) const override {
    return nullptr;
  }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*> args) const override {
    const auto& in = args[0]->toTensor();
    auto out = args[1]->toTensor();
    for (ssize_t i = 0; i < in.numel(); ++i) {
      out.mutable_data_ptr<float>()[i] = 2 * in.const_data_ptr<float>()[i];
    }
    return Error::Ok;
  }
};
static Twice twice;
static auto registered = register_backend(Backend{"MPSBackend", &twice});
"""
# Another library of the wheel, with a separate registry, is loaded before or after it.
RUN = """
import sys
import torch
if sys.argv[1] == "late":
    from pipeline.program.runtime_bindings import import_bindings
    import_bindings()
else:
    import executorch.kernels.quantized
from executorch.exir import to_edge
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from torch.export import export

from pipeline.devices.bindings import Package, registered_backends
from pipeline.devices.interface import PackageFiles
from tests.support.matrix import in_tiers


class MPSBackend(BackendDetails):
    @staticmethod
    def preprocess(program, specs):
        return PreprocessResult(b"")


class Add(torch.nn.Module):
    def forward(self, x):
        return x + x


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        edge = to_edge(export(Add(), (torch.ones(3),))).exported_program()
        self.lowered = to_backend("MPSBackend", edge, [])

    def forward(self, x):
        return self.lowered(x)


program = to_edge(export(Whole(), (torch.ones(3),))).to_executorch()
assert "MPSBackend" in registered_backends()
package = Package(PackageFiles("p", program.buffer))
package.load("forward")
(output,) = package.run("forward", [torch.tensor([1.0, 2.0, 5.0])])
assert output.tolist() == [2.0, 4.0, 10.0], output
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs a compiler")
    folder = tmp_path_factory.mktemp("delegate")
    wheel = Path(executorch.__path__[0])
    (folder / "twice.cpp").write_text(SOURCE)
    include = wheel / "include"
    headers = (include, include / "executorch/runtime/core/portable_type/c10")
    # The library with the registry of delegates differs by release.
    libraries = [
        *wheel.glob(f"extension/pybindings/{installed_release().bindings}.*.so"),
        *wheel.glob("backends/qualcomm/libqnn_executorch_backend.so"),
        *wheel.glob("lib/libexecutorch.so"),
    ]
    subprocess.run(
        [
            *("g++", "-shared", "-fPIC", "-std=c++17", "-DC10_USING_CUSTOM_GENERATED_MACROS"),
            *("-DET_LOG_ENABLED=0", "-w", *(f"-I{folder}" for folder in headers)),
            *("-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"),
            *(folder / "twice.cpp", "-o", folder / "libtwice.so"),
            *libraries,
        ],
        check=True,
    )
    return folder / "libtwice.so"


def run(script, *words, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *words],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", in_tiers(["early", "late"], ["late"]))
def test_the_runtime_runs_it_in_whatever_order_libraries_are_loaded(library, order):
    done = run(RUN, order, **{VARIABLE: str(library)})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_it_the_runtime_lacks_the_backend():
    done = run(RUN, "early")
    assert done.returncode != 0 and done.stderr.endswith("\nAssertionError\n")


@pytest.mark.slow
def test_a_library_that_is_none_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "libnone.so"
    path.write_text("text")
    script = "from pipeline.devices.bindings import registered_backends as r; r()"
    done = run(script, **{VARIABLE: str(path)})
    assert f"PipelineError: {VARIABLE}: libnone.so can't be loaded: " in done.stderr
