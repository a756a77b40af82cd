"""Delegate libraries: loads delegates that ExecuTorch's wheel lacks.

They are in shared libraries listed in the environment, so that this machine can run packages that
call them.

libraries  finds the listed libraries, and the delegates in them
loading    registers their delegates in the runtime of this process
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "delegate_libraries",
    "load delegates that ExecuTorch's wheel lacks, from the libraries in "
    "PTE_DELEGATE_LIBRARIES",
    explain_missing_delegate="pipeline.features.delegate_libraries.libraries:explain_missing",
    find_delegate_facts="pipeline.features.delegate_libraries.libraries:find_facts",
    load_delegates="pipeline.features.delegate_libraries.loading:load_delegate_libraries",
)
