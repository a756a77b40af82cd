"""C++ call sites, compiled against the SDK of ExecuTorch's wheel and run: they give the same
outputs and the same refusals as Python."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2

from pipeline import load_package
from pipeline.features.call_sites.verb import render
from tests.docs.blocks import read_blocks
from tests.support.bench import Bench

SDK = Path(os.environ.get("PTE_PIPELINE_NATIVE_SDK", ""))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SDK / "lib" / "libexecutorch.so").exists() or not shutil.which("g++"),
        reason="needs a C++ compiler, and PTE_PIPELINE_NATIVE_SDK for ExecuTorch's SDK",
    ),
]


class Mix(nn.Module):
    def forward(self, left, right, scale, flag):
        return (left * scale if flag else left) + right, right.sum(1)


MAIN = """
#include "mix.h"

#include <cstdio>

using executorch::extension::make_tensor_ptr;

static std::vector<float> count(int size) {
  std::vector<float> values(size);
  for (int i = 0; i < size; ++i) {
    values[i] = 0.25f * i;
  }
  return values;
}

int main(int, char** arguments) {
  mix::Mix package(arguments[1]);
  auto left = make_tensor_ptr({3, 2}, count(6));
  auto mixed = package.forward(left, make_tensor_ptr({3, 2}, count(6)));
  if (!mixed.ok()) {
    return 1;
  }
  printf("{\\"mixed\\": [");
  for (int i = 0; i < 6; ++i) {
    printf("%s%.9g", i ? ", " : "", mixed->output_0.const_data_ptr<float>()[i]);
  }
  printf("], \\"sums\\": %d, \\"length\\": %d, \\"mean\\": %.9g, \\"on\\": %d, ",
         (int)mixed->output_1.numel(), (int)*package.get_length(), *package.get_mean(),
         (int)*package.get_on());
  auto wide = make_tensor_ptr({3, 4}, count(12));
  auto other = make_tensor_ptr({2, 2}, count(4));
  auto many = make_tensor_ptr({9, 2}, count(18));
  auto whole = make_tensor_ptr({3, 2}, std::vector<int64_t>(6));
  printf("\\"refused\\": [%d, %d, %d, %d]}\\n", (int)package.forward(left, wide).error(),
         (int)package.forward(left, other).error(), (int)package.forward(many, many).error(),
         (int)package.forward(left, whole).error());
}
"""


def block_of(language, beginning):
    """Return the guide's block in this language that begins with these words."""
    (block,) = (
        block
        for block in read_blocks("docs/guides/apps/cpp.md")
        if block.language == language and block.text.startswith(beginning)
    )
    return block.text


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    root = tmp_path_factory.mktemp("cpp") / "w"
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    rows = {0: Dim("rows", min=2, max=8)}
    shapes = {"left": rows, "right": rows, "scale": None, "flag": None}
    example = (torch.ones(3, 2), torch.ones(3, 2), 0.5, True)
    program = export(Mix(), example, dynamic_shapes=shapes)
    package_pt2(str(root / "models" / "mix.pt2"), exported_programs={"forward": program})
    constants = {"get_length": 8, "get_mean": 0.25, "get_on": True}
    config = {
        "model": "mix",
        "methods": {"forward": {"partitioners": ["xnnpack"]}},
        "constant_methods": constants,
    }
    (root / "partition_configs" / "mix.yaml").write_text(json.dumps(config))
    bench = Bench(root)
    assert bench.doit("lower") == 0, bench.output
    return bench


def test_a_header_is_compiled_and_gives_what_python_gives(bench):
    words = ("call-sites", "mix", "--language", "cpp", "--out", "mix.h")
    assert bench.doit(*words) == 0, bench.output
    assert bench.output == "mix.h: 4 methods of mix in cpp\n"
    (bench.root / "main.cpp").write_text(MAIN)
    command = block_of("sh", "export PTE_").partition("\n")[2].replace("g++", "g++ -Werror")
    environment = {**os.environ, "PTE_PIPELINE_NATIVE_SDK": str(SDK)}
    subprocess.run(command, shell=True, cwd=bench.root, env=environment, check=True, timeout=300)
    pte = bench.root / "build" / "mix" / "mix.pte"
    done = subprocess.run(
        [bench.root / "main", pte], capture_output=True, text=True, check=True, timeout=60
    )
    answer = json.loads(done.stdout)
    values = 0.25 * torch.arange(6, dtype=torch.float32).reshape(3, 2)
    mixed, sums = load_package(pte).forward(values, values, 0.5, True)
    assert answer == {
        "mixed": mixed.flatten().tolist(),
        "sums": sums.numel(),
        "length": 8,
        "mean": 0.25,
        "on": 1,
        "refused": [18] * 4,  # Error::InvalidArgument
    }
    for words in ("right: size 4, must be from 2 to 2", "right: size 2, must be 3 as another one"):
        assert f"forward: {words}" in done.stderr
    assert "left: size 9, must be from 2 to 8" in done.stderr
    assert "right: has the wrong dtype or rank" in done.stderr


def test_the_program_of_the_guide_compiles(tmp_path):
    """It uses the call sites of a package like the one in the guide."""
    sizes, scores = ((1, 3, 64, 64), (1, 10))
    image, output = (
        {"name": name, "dtype": "float32", "sizes": [*shape], "order": [*range(len(shape))]}
        for name, shape in (("image", sizes), ("output", scores))
    )
    signature = {"args": [["image", image]], "kwargs": [], "outputs": output, "changes": []}
    manifest = {
        "package": "vision",
        "emit": {},
        "constant_methods": {},
        "files": {"vision.pte": {"digest": "0" * 64}},
        "methods": {"classify": {"signature": signature}},
    }
    (tmp_path / "vision.h").write_text("\n".join(render(manifest, "cpp")))
    (tmp_path / "main.cpp").write_text(block_of("cpp", '#include "vision.h"'))
    folders = (SDK / "include", SDK / "include/executorch/runtime/core/portable_type/c10")
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "main.cpp"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", *(f"-isystem{path}" for path in folders)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
