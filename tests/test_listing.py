"""What `doit backends` prints: every backend, and every option of each."""

import subprocess
import sys

import pytest

from pipeline.backends import BACKENDS, QUANTIZERS
from pipeline.errors import PipelineError
from pipeline.listing import list_backends, tell_backend


def test_every_backend_has_a_row():
    rows = {line.split()[0]: line for line in list_backends() if line.strip()}
    assert set(BACKENDS) <= set(rows)
    assert rows["xnnpack"].split()[-5:] == ["yes", "yes", "apart", "yes", "yes"]
    assert " no " in rows["cortex_m"] and "yes" not in rows["cortex_m"].split("  apart")[0]


@pytest.mark.parametrize("name", [*BACKENDS, *(n for n in QUANTIZERS if n not in BACKENDS)])
def test_every_option_is_told(name):
    lines = list(tell_backend(name))
    assert all(len(line) <= 100 for line in lines)
    told = {line.split(":")[0].strip() for line in lines if line.startswith("  ")}
    models = [BACKENDS[name].options] if name in BACKENDS else []
    models += [QUANTIZERS[name].options] if name in QUANTIZERS else []
    for model in models:
        assert set(model.model_fields) - {"quantizer"} <= told


def test_what_is_missing_is_told_with_its_remedy():
    text = "\n".join(tell_backend("mediatek"))
    assert "lowers here: needs mtk_converter" in text
    assert "lowers here: no: it " in "\n".join(tell_backend("cadence"))


def test_a_name_that_is_not_there():
    with pytest.raises(PipelineError, match="no backend 'vulcan'; did you mean 'vulkan'"):
        list(tell_backend("vulcan"))


def test_no_torch_is_imported():
    code = (
        "import sys; from pipeline.listing import *; list(list_backends());"
        "[list(tell_backend(n)) for n in ('xnnpack', 'vgf', 'qualcomm')];"
        "assert not {'torch', 'executorch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
