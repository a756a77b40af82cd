"""Made-up build records, in the shape of real ones."""

from __future__ import annotations

from typing import Any


def delegation(delegated: int, undelegated: dict[str, int], **more: Any) -> dict[str, Any]:
    """Return the counts of a method: `delegated` calls of one operator in one XNNPACK partition."""
    return {
        "nodes": delegated + sum(undelegated.values()),
        "delegated_nodes": delegated,
        "operators": (delegated > 0) + len(undelegated),
        "delegated_operators": int(delegated > 0),
        "partitions": {"XnnpackBackend": 1} if delegated else {},
        "undelegated": undelegated,
        **more,
    }


def estimate(cycles: int, **changes: Any) -> dict[str, Any]:
    """Return the estimate for one delegate whose NPU is busy in four of five cycles."""
    return {
        "backend": "EthosUBackend",
        "tool": "vela",
        "clock": 500_000_000,
        "cycles": cycles,
        "busy_cycles": cycles * 4 // 5,
        "macs": 1000,
        "sram": 4096,
        "dram": 0,
        "on_chip_flash": 0,
        "off_chip_flash": 512,
        **changes,
    }


def leaf(name: str) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "order": [0], "sizes": [4]}


def manifest(**changes: Any) -> dict[str, Any]:
    """Return the manifest of a package with the methods encode and decode (with two outputs)."""

    def method(delegated: dict[str, Any], outputs: Any) -> dict[str, Any]:
        return {
            "program": "0" * 64,
            "unit": "any",
            "lowering": {"partitioners": [{"name": "xnnpack", "options": {"per_op_mode": False}}]},
            "quantized": None,
            "delegation": delegated,
            "signature": {"args": [], "kwargs": [], "outputs": outputs, "changes": []},
        }

    return {
        "format": 1,
        "package": "asr",
        "model": "asr",
        "target": "phone",
        "toolchain": {"torch": "2.13.0", "executorch": "1.4.1"},
        "host": None,
        "emit": {"external_constants": False},
        "constant_methods": {"get_size": 8},
        "order": ["encode", "decode"],
        "methods": {
            "encode": method(delegation(8, {"aten.view_copy": 2}), leaf("output")),
            "decode": method(
                delegation(9, {"aten.add.Tensor": 1}),
                ["tuple", leaf("logits"), ["dict", ["state", leaf("state")]]],
            ),
        },
        "objects": {},
        "files": {"asr.pte": {"digest": "a" * 64, "size": 1000}},
        **changes,
    }


def contents(constants: int = 600, memory: int = 2048, **tensors: int) -> dict[str, Any]:
    """Return the contents record of a package; `tensors` maps names of float32 tensors to sizes."""
    sizes = {"encoder.weight": 400, "decoder.weight": 200} | tensors
    segments = {"program": 300, "constants": constants, "delegate": 100}
    return {
        "size": sum(segments.values()),
        "segments": [
            {
                "file": "asr.pte",
                "kind": kind,
                "name": kind,
                "offset": 0,
                "size": size,
                "digest": "b" * 64,
                "methods": ["encode", "decode"],
                "backend": None,
            }
            for kind, size in segments.items()
        ],
        "methods": {
            name: {
                "instructions": 4,
                "delegates": [],
                "planned_memory": [{"arena": 1, "size": memory}, {"arena": 2, "size": 256}],
                "constants": constants // 2,
                "delegated": 100,
            }
            for name in ("encode", "decode")
        },
        "tensors": [
            {
                "name": name,
                "dtype": "float32",
                "shape": [size // 4],
                "size": size,
                "file": "asr.pte",
                "where": "constants",
                "methods": ["encode"],
            }
            for name, size in sorted(sizes.items(), key=lambda pair: -pair[1])
        ],
        "shared": [],
        "twice": [],
    }


def output(sqnr: float | str | None, max_abs: float = 0.01) -> dict[str, Any]:
    return {"max_abs": max_abs, "mean_abs": max_abs / 2, "sqnr_db": sqnr}


def proved(method: str, *runs: list[Any], **changes: Any) -> dict[str, Any]:
    """Return a method's part of the report; each run lists the SQNR of its outputs."""
    return {
        "method": method,
        "kind": "program",
        "ok": True,
        "max_abs": 0.0123,
        "runs": [{"origin": "x", "outputs": [output(each) for each in run]} for run in runs],
        "not_run": "",
        "latency": None,
        **changes,
    }


def validation(**methods: dict[str, Any]) -> dict[str, Any]:
    own = {"encode": proved("encode", [131.5]), "decode": proved("decode", [42.06, "inf"])}
    return {"files": {"asr.pte": "a" * 64}, "methods": list((own | methods).values())}
