"""Contracts: what packages require of runtimes, and what targets' runtimes provide."""

from __future__ import annotations

from pipeline.moments import Command, Feature

CONTRACT = Command(
    "contract",
    "show what packages need from a runtime, and the CMake lines that build it",
    "[package ...]",
    {
        "all": "print one contract for an app with all packages, and write it to build/",
        "on DEVICE": "check that the runtime of DEVICE (native, qemu:<cpu>, a board, or a plugin's "
        "device) has everything that the packages need",
        "of-runtime": "describe this machine's runtime in targets/<name>.yaml; "
        "the name is `wheel` by default",
        "json": "print one line of JSON instead (docs/reference/json.md)",
    },
    "Without names, the contracts of all packages are shown.",
    (
        ("doit contract vision", "operators, backends, memory, and CMake lines"),
        ("doit contract --all", "one runtime for all packages"),
        ("doit contract vision --on pi5", "check the runtime on a board"),
        ("doit contract --of-runtime here", "write targets/here.yaml"),
    ),
    run="pipeline.features.contracts.verb:run",
    record="pipeline.features.contracts.verb:CONTRACTS",
)
FEATURE = Feature(
    "contracts",
    "describe what packages need from a runtime, and check packages against files in targets/",
    verbs=(CONTRACT,),
    summarize="pipeline.features.contracts.planning:summarize",
    planning="pipeline.features.contracts.planning:TargetPlanning",
    remarks="pipeline.features.contracts.planning:find_remarks",
    check_files="pipeline.features.contracts.planning:check_files",
    find_kernel_library="pipeline.features.contracts.kernel_names:find_kernel_library",
    kernel_namespaces="pipeline.features.contracts.kernel_names:kernel_namespaces",
    schemas={
        "targets/schema.json": "pipeline.features.contracts.target_schema:target_schema"
    },
    outlines={"contract.json": "pipeline.features.contracts.outline:CONTRACT"},
    after_link="pipeline.features.contracts.link:write_contract",
    link_files=("contract.json", "selected_operators.yaml"),
)
