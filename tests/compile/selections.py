"""Compares contracts with what ExecuTorch's selective build reads, for each `.pte` in some folders.

    python -m tests.compile.selections FOLDER...

prints each file whose operators or kernel keys differ, and the number of files and methods.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from executorch.codegen.tools import selective_build
from executorch.codegen.tools.gen_oplist import KernelType

from pipeline.features.contracts.contract import describe_contract
from pipeline.store.errors import PipelineError

_TENSORS = {int(each) for each in KernelType}


def upstream(data: bytes) -> dict[str, list[str]]:
    """Return the kernel keys of each operator, as gen_oplist reports them."""
    program = selective_build._get_program_from_buffer(data)
    found: dict[str, set[str]] = {
        name: set() for name in selective_build._get_program_operators(program)
    }
    for name, kernels in selective_build._get_io_metadata_for_program_operators(program).items():
        for kernel in kernels:
            tensors = [each for each in kernel if each.kernel_type in _TENSORS]
            keys = (f"{each.dtype};{','.join(map(str, each.dim_order))}" for each in tensors)
            found[name].add(f"v1/{'|'.join(keys)}".removesuffix("/"))
    return {name: sorted(keys) for name, keys in found.items()}


def main() -> None:
    """Compare the packages in the folders of the command line."""
    files = methods = different = refused = 0
    operators: set[str] = set()
    spent = time.process_time()
    for path in (each for folder in sys.argv[1:] for each in sorted(Path(folder).rglob("*.pte"))):
        try:
            contract = describe_contract(path.stem, {path.name: path}, "")
        except PipelineError:  # from damage tests, for example
            refused += 1
            continue
        files, methods = files + 1, methods + len(contract["methods"])
        operators |= contract["operators"].keys()
        ours = {name: own["keys"] for name, own in contract["operators"].items()}
        if ours != upstream(path.read_bytes()):
            different += 1
            print(f"differs: {path}")
    spent = time.process_time() - spent
    print(f"{files} files, {methods} methods, {len(operators)} operators: {different} differ")
    print(f"{refused} refused; {spent:.1f} s")


if __name__ == "__main__":
    main()
