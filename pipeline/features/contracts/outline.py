"""The form of `contract.json`, against which it is checked when it is read."""

from __future__ import annotations

from typing import Literal

# A backend or a kernel library: the CMake option and library of ExecuTorch's build that it needs,
# "" if there is none, and any other needs.
_LINKED = {"name": str, "option": str, "library": str, "more": str}
# The calls of an operator on tensors of the same dtypes and dim orders: the dtype of each argument,
# None if it isn't a tensor; the kernel key of selective build; the indices of the instructions.
_KERNEL = {
    "operator": str,
    "arguments": [(str, None)],
    "key": str,
    "instructions": list[int],
}
# An operator that is called outside delegates: the ExecuTorch library with its kernel (portable,
# quantized, llm, cortex_m, or prim, which every runtime has) or `own`, and the library to link, or
# that registers the operator.
_OPERATOR = {
    "kernels": str,
    "library": str,
    "dtypes": list[str],
    "keys": list[str],
}
# The greatest powers of two, in bytes, that divide the offsets of all segments, constants and
# payloads in the file, and of all tensors in planned memory; None if there are none.
_ALIGNMENT = {
    "segments": (int, None),
    "constants": (int, None),
    "payloads": (int, None),
    "planned_memory": (int, None),
}
# What packages require of the runtime that loads them. A joint contract of several packages is the
# union, with methods named `<package>/<method>`, and as `alignment` what all packages keep.
# `executorch` lists the versions that made them; `backends` (by delegate id) and `kernels` (by
# library) what to link; `data_files` the `.ptd` files that are loaded with them.
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
