"""The lines of an app's CMakeLists.txt that build the runtime required by a contract.

They follow tools/cmake/Codegen.cmake of ExecuTorch's source at v1.4.1. `EXECUTORCH_SELECT_OPS_YAML`
is not used, since it takes a library's list of kernels, not `selected_operators.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.contracts.linking import (
    KernelLibrary,
    kernel_libraries,
    operators_of,
)

Json = Mapping[str, Any]
# Options that ExecuTorch requires in addition to an option (tools/cmake/preset/default.cmake).
_ALSO = {
    "EXECUTORCH_BUILD_KERNELS_LLM": "EXECUTORCH_BUILD_KERNELS_OPTIMIZED",
    "EXECUTORCH_BUILD_QNN": "EXECUTORCH_BUILD_EXTENSION_TENSOR",
    "EXECUTORCH_BUILD_CUDA": "EXECUTORCH_BUILD_EXTENSION_TENSOR",
    "EXECUTORCH_BUILD_METAL": "EXECUTORCH_BUILD_EXTENSION_TENSOR",
}
# The list of portable and optimized kernels, which ExecuTorch's build merges.
_MERGED = "${CMAKE_CURRENT_BINARY_DIR}/executorch/configurations/merged.yaml"
_DATA_FILES = "EXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR"  # with its loader, on by default


def cmake_lines(contract: Json, name: str, selection: str) -> Iterator[str]:
    """Yield the CMake lines that build exactly what a contract requires, for a target `app`.

    Args:
        name: the name of the kernel library that they build.
        selection: the path of its `selected_operators.yaml`.
    """
    links = [*contract["backends"].values(), *contract["kernels"].values()]
    options = [item["option"] for item in links if item["option"]]
    options += [_DATA_FILES] if contract["data_files"] else []
    options += [_ALSO[option] for option in options if option in _ALSO]
    for option in dict.fromkeys(options):
        yield f"set({option} ON)"
    yield "add_subdirectory(${EXECUTORCH_ROOT} executorch)"
    known_libraries = kernel_libraries()
    used = [
        known_libraries[item] for item in contract["kernels"] if item in known_libraries
    ]
    selected = [item for item in used if item.kernels]
    if selected:
        yield from _selected_kernels(selected, name, selection)
    whole = [item.library for item in used if not item.kernels and item.option]
    linked = ["executorch", "executorch_extensions"]
    linked += ["executorch_backends"] if contract["backends"] else []
    linked += [name] if selected else []
    linked += [f"$<LINK_LIBRARY:WHOLE_ARCHIVE,{item}>" for item in whole]
    yield f"target_link_libraries(app PRIVATE {' '.join(linked)})"
    yield from _remarks(contract)


def _selected_kernels(
    libraries: list[KernelLibrary], name: str, selection: str
) -> Iterator[str]:
    """Yield the lines of a library with only the selected operators.

    If its kernels are portable, ExecuTorch also selects their dtypes.
    """
    used = {library.name: library for library in libraries}
    lists = ""
    kernels = [library.kernels for library in libraries if library.name != "portable"]
    by_dtype = ""
    if "optimized" in used:  # which include the portable ones
        lists += f" FUNCTIONS_YAML {_MERGED}"
    elif "portable" in used:
        lists += f" FUNCTIONS_YAML ${{EXECUTORCH_ROOT}}/{used['portable'].listing}"
        kernels = ["portable_kernels", *kernels]
        by_dtype = " DTYPE_SELECTIVE_BUILD ON"
    if "quantized" in used:
        lists += f" CUSTOM_OPS_YAML ${{EXECUTORCH_ROOT}}/{used['quantized'].listing}"
    yield "include(${EXECUTORCH_ROOT}/tools/cmake/Codegen.cmake)"
    yield "resolve_python_executable()"
    yield f"set(selected ${{CMAKE_CURRENT_BINARY_DIR}}/{name})"
    yield f'configure_file("{selection}" ${{selected}}/selected_operators.yaml COPYONLY)'
    if by_dtype:
        yield "executorch_load_build_variables()"
        yield "add_custom_command("
        yield "  OUTPUT ${selected}/selected_op_variants.h"
        yield "  COMMAND ${PYTHON_EXECUTABLE} -m codegen.tools.gen_selected_op_variants"
        yield "    --yaml-file=${selected}/selected_operators.yaml --output-dir=${selected}/"
        yield "  DEPENDS ${selected}/selected_operators.yaml"
        yield "  WORKING_DIRECTORY ${EXECUTORCH_ROOT})"
    yield f"generate_bindings_for_kernels(LIB_NAME {name}{lists}{by_dtype})"
    linked = f"KERNEL_LIBS {' '.join(kernels)} DEPS executorch_core"
    yield f"gen_operators_lib(LIB_NAME {name} {linked}{by_dtype})"


def _remarks(contract: Json) -> Iterator[str]:
    """Yield comments on requirements that the CMake lines can't express."""
    faster = sorted(operators_of("optimized") & contract["operators"].keys())
    if faster and "optimized" not in contract["kernels"]:
        option = kernel_libraries()["optimized"].option
        yield f"# {option} has faster kernels of {', '.join(faster)}, in {_MERGED}."
    for link in contract["backends"].values():
        if link["more"]:
            yield f"# {link['library'] or link['name']}: {link['more']}."
    for operator, facts in contract["operators"].items():
        if facts["kernels"] == "own":
            yield f"# {operator}: link your kernel ({facts['library'] or 'no library is known'})."
