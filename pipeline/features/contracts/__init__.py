"""Contracts: what packages ask of the runtime that loads them, and what the runtimes of targets
hold."""

from __future__ import annotations

from pipeline.moments import Command, Feature

CONTRACT = Command(
    "contract",
    "show what packages need from their runtime, and the CMake lines that build it",
    "[package ...]",
    {
        "all": "one contract for all of them, as for one app; it is left in build/ too",
        "on DEVICE": "ask a device's runtime whether it has all that the packages need: native, "
        "qemu:<cpu>, a board, or a device that a plugin brings",
        "of-runtime": "write what this machine's runtime holds to targets/<name>.yaml",
        "json": "write one line of JSON instead; docs/reference/json.md describes it",
    },
    "Without a name, all packages are meant; with --of-runtime the target `wheel` is.",
    (
        ("doit contract vision", "operators, backends, memory, and CMake lines"),
        ("doit contract --all", "of one runtime for all packages"),
        ("doit contract vision --on pi5", "asks the runtime on a board"),
        ("doit contract --of-runtime here", "writes targets/here.yaml"),
    ),
    run="pipeline.features.contracts.verb:run",
    record="pipeline.features.contracts.verb:CONTRACTS",
)
FEATURE = Feature(
    "contracts",
    "describe what packages ask of their runtime, and hold them to files in targets/",
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
