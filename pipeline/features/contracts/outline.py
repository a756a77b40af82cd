"""The form of `contract.json`, against which it is checked when it is read."""

from __future__ import annotations

from typing import Literal

_LINKED = {
    "name": (str, "the name of the backend in configs, or of the kernel library"),
    "option": (str, 'the option of ExecuTorch\'s CMake build; "" if there is none'),
    "library": (str, 'the library to link; "" if there is none'),
    "more": (str, "what else is needed, such as a driver"),
}
# The calls of an operator on tensors of the same dtypes and dim orders.
_KERNEL = {
    "operator": (str, "the operator, such as `aten::add.out`"),
    "arguments": (
        [(str, None)],
        "the dtype of each argument; null for arguments that are not tensors",
    ),
    "key": (str, "the kernel key for ExecuTorch's selective build"),
    "instructions": (
        list[int],
        "the indices of the instructions that make these calls",
    ),
}
_OPERATOR = {
    "kernels": (
        str,
        "ExecuTorch's kernel library with the operator: portable, quantized, llm, cortex_m, or "
        "prim, which every runtime has; `own` if none of them has it",
    ),
    "library": (
        str,
        "the library to link; for `own`, the library that registers the operator",
    ),
    "dtypes": (list[str], "the dtypes of the tensors in all calls"),
    "keys": (list[str], "the kernel keys of all calls"),
}
_ALIGNMENT = {
    "segments": (int, None),
    "constants": (int, None),
    "payloads": (int, None),
    "planned_memory": (int, None),
}
# What packages require of the runtime that loads them. A joint contract of several packages is the
# union, with methods named `<package>/<method>`, and as `alignment` what all packages keep.
CONTRACT = {
    "format": Literal[1],
    "packages": (list[str], "the packages that the contract is for"),
    "executorch": (list[str], "the versions of ExecuTorch that made the packages"),
    "schemas": (
        [{"identifier": str, "version": int}],
        "the identifiers and schema versions of the .pte files",
    ),
    "alignment": (
        _ALIGNMENT,
        "for the segments, constants and payloads in the files, and for the tensors in planned "
        "memory, the greatest power of two, in bytes, that divides all their offsets; null if "
        "there are none",
    ),
    "data_files": (list[str], "the .ptd files that are loaded with the packages"),
    "operators": (
        {str: _OPERATOR},
        "the operators that methods call outside delegates, by name",
    ),
    "kernels": ({str: _LINKED}, "the kernel libraries to link, by name"),
    "backends": ({str: _LINKED}, "the backends to link, by the id in packages"),
    "methods": (
        {
            str: {
                "kernels": (
                    [_KERNEL],
                    "the calls outside delegates, grouped by kernel",
                ),
                "backends": (
                    list[str],
                    "the ids of the backends that run the delegates",
                ),
                "planned_memory": (
                    [{"arena": int, "size": int}],
                    "the memory that the runtime allocates for each arena, in bytes",
                ),
            }
        },
        "the methods, by name or, in a joint contract, by `<package>/<method>`",
    ),
}
