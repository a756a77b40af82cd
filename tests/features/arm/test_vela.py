"""vela's summary as an estimate: which columns count, in which units, and what is rejected."""

import pytest

from pipeline.backends.estimate import Estimate
from pipeline.features.arm.vela import read_summary

# As vela 5.1 writes it, without the bandwidth columns.
SUMMARY = {
    "experiment": "default",
    "network": "out",
    "accelerator_configuration": "Ethos_U55_128",
    "core_clock": "500000000.0",
    "weights_storage_area": "Off-chip Flash",
    "inferences_per_second": "59623.18149296446",
    "inference_time": "1.6772e-05",
    "sram_memory_used": "4.796875",
    "dram_memory_used": "0.0",
    "on_chip_flash_memory_used": "0.0",
    "off_chip_flash_memory_used": "0.59375",
    "nn_macs": "54880",
    "cycles_npu": "7734",
    "cycles_sram_access": "3664",
    "cycles_total": "8386",
}


def written(**changes):
    row = {name: value for name, value in (SUMMARY | changes).items() if value is not None}
    return ",".join(row) + "\r\n" + ",".join(row.values()) + "\r\n"


def test_figures_are_read_with_memory_in_bytes():
    assert read_summary(written()) == Estimate(
        tool="vela",
        clock=500_000_000,
        cycles=8386,
        busy_cycles=7734,
        macs=54880,
        sram=4912,
        dram=0,
        on_chip_flash=0,
        off_chip_flash=608,
    )


def test_columns_are_found_by_name():
    backwards = dict(reversed(SUMMARY.items()))
    text = ",".join(backwards) + "\n" + ",".join(backwards.values()) + "\n"
    assert read_summary(text) == read_summary(written())


@pytest.mark.parametrize(
    "text",
    [
        "",
        written().splitlines()[0],
        written() + written().splitlines()[1],
        written(cycles_total=None),
        written(sram_memory_used="nan"),
        written(cycles_npu="inf"),
        written(nn_macs="many"),
        written(cycles_total="-1"),
        written(core_clock="0"),
        ",".join(SUMMARY) + "\ndefault,out\n",
    ],
)
def test_a_summary_that_lacks_a_figure_is_none(text):
    assert read_summary(text) is None
