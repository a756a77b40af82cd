"""The form of `contract.json`, by which it is checked when it is read."""

from __future__ import annotations

from typing import Literal

# A backend or a library of kernels, with the CMake option and library of ExecuTorch's build that it
# takes, "" where there is none, and what it needs beside.
_LINKED = {"name": str, "option": str, "library": str, "more": str}
# The calls of an operator on tensors of the same dtypes and dim orders: the dtype of each argument,
# None for what is no tensor; the kernel key of selective build; the indices of the instructions.
_KERNEL = {
    "operator": str,
    "arguments": [(str, None)],
    "key": str,
    "instructions": list[int],
}
# An operator that is called outside of delegates: ExecuTorch's library of its kernel (portable,
# quantized, llm, cortex_m, or prim, which every runtime has), `own` for others, and what is linked,
# or registers it.
_OPERATOR = {
    "kernels": str,
    "library": str,
    "dtypes": list[str],
    "keys": list[str],
}
# The greatest powers of two, in bytes, that divide the offsets of all segments, constants and
# payloads in the file, and of all tensors in planned memory; None where there is none.
_ALIGNMENT = {
    "segments": (int, None),
    "constants": (int, None),
    "payloads": (int, None),
    "planned_memory": (int, None),
}
# The needs of packages of the runtime that loads them; that of several packages is the union, with
# `alignment` what all keep, and methods called `<package>/<method>`. `executorch` are the versions
# that made them, `backends` what to link by the delegates' ids, `kernels` by the names of
# libraries, `data_files` the `.ptd` files that are loaded with them.
CONTRACT = {
    "format": Literal[1],
    "packages": list[str],
    "executorch": list[str],
    "schemas": [{"identifier": str, "version": int}],
    "alignment": _ALIGNMENT,
    "data_files": list[str],
    "operators": {str: _OPERATOR},
    "kernels": {str: _LINKED},
    "backends": {str: _LINKED},
    "methods": {
        str: {
            "kernels": [_KERNEL],
            "backends": list[str],
            "planned_memory": [{"arena": int, "size": int}],
        }
    },
}
