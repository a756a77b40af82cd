"""The estimates of NPU compilers in a report."""

import jsonschema

from pipeline.features.pages.markdown import markdown
from pipeline.features.pages.sections.estimates import section
from pipeline.features.schemas.record_schemas import report_schema
from tests.features.pages.test_markdown import method, rows, validation
from tests.support.builds import delegation, estimate

RECORD = validation(method("encode"), method("decode"), method("embed")) | {
    "delegation": {
        "decode": delegation(3, {}),
        "embed": delegation(3, {}, estimates=[estimate(8386)]),
        "encode": delegation(
            3,
            {},
            estimates=[
                estimate(400_000, sram=2000, off_chip_flash=1000, clock=400_000_000),
                estimate(100_000, sram=3000, off_chip_flash=500, clock=400_000_000),
            ],
        ),
    }
}


def test_records_are_valid():
    jsonschema.Draft202012Validator(report_schema()).validate(RECORD)


def test_delegates_are_summed_up_by_method():
    assert "<summary>Estimated by vela</summary>" in markdown(RECORD)
    encode, embed = rows(markdown(RECORD), "By method")
    assert encode[:7] == [
        *("`encode`", "EthosUBackend", "2", "500,000", "400,000", "400 MHz"),
        "1.25 ms (800.0 per second)",
    ]
    assert encode[7:] == ["2,000", "3.0 kB", "0 B", "0 B", "1.5 kB"]
    assert embed[:4] == ["`embed`", "EthosUBackend", "1", "8,386"]


def test_without_estimates_there_is_no_section():
    plain = RECORD | {"delegation": {"decode": delegation(3, {})}}
    assert not section(plain).parts
