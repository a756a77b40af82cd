"""Metric files run in a separate process, and each mistake in one is a one-line error."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from pipeline.features.metrics.calls import CallServer
from pipeline.features.metrics.scoring import score
from pipeline.run.isolated import run_isolated
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import Budget, OutOfTimeError

DATA = "def data(method):\n    yield from ((float(number), 2.0 * number) for number in range({}))\n"
METRIC = (
    "def metric(outputs, labels):\n"
    "    return sum(o == l for o, l in zip(outputs, labels)) / len(labels)\n"
)


def double(method, args, kwargs):
    (value,) = args
    return value * 2 if not isinstance(value, str) else torch.zeros(1) @ torch.zeros(2)


def run(folder, text, samples=40, method="f", timeout=20.0, reset=None, budget=None):
    """Score a metric file with this text, on a method that doubles its argument."""
    path = folder / "metrics" / "m.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    calls = CallServer(["f", "g"], double, reset, timeout, budget)
    return run_isolated(partial(score, folder, "m", calls, method, samples), calls)


def test_a_mean_of_samples_has_the_score_of_each(tmp_path):
    scores = run(tmp_path, DATA.format("10**9") + METRIC)
    (value,) = scores["values"].values()
    assert scores["samples"] == 40 and scores["more"] and scores["methods"] == ["f"]
    assert value["value"] == 1 and value["scores"] == [1.0] * 40
    assert value["resampled"] == [1.0] * 400


def test_the_first_output_alone_is_scored_too(tmp_path):
    (value,) = run(tmp_path, DATA.format("10**9") + METRIC)["values"].values()
    assert value["still"] == 1 / 40
    picky = (
        "def metric(outputs, labels):\n    assert len({*outputs}) == len(outputs)\n    return 1\n"
    )
    (value,) = run(tmp_path, DATA.format(5) + picky)["values"].values()
    assert value["still"] is None


def test_halves_are_every_other_sample(tmp_path):
    first = "def metric(outputs, labels):\n    return 100 * len(outputs) + outputs[0]\n"
    (value,) = run(tmp_path, DATA.format(5) + first)["values"].values()
    assert (value["value"], value["halves"]) == (500, [300, 202])
    (value,) = run(tmp_path, DATA.format(1) + METRIC)["values"].values()
    assert value["halves"] == [1, None]


def test_pipelines_have_state_per_sample_and_values_by_name(tmp_path):
    resets = []
    text = (
        "import torch, shared\n"
        "def data(method):\n"
        "    assert method is None\n"
        "    yield from (({'x': torch.tensor([1.0 * n])}, n) for n in range(31))\n"
        "def predict(package, inputs):\n"
        "    assert list(package) == ['f', 'g']\n"
        "    return float(package.g(package['f'](inputs['x'])))\n"
        "def metric(outputs, labels):\n"
        "    return {'range': shared.span(outputs), 'mean': sum(outputs) / len(outputs)}\n"
    )
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "shared.py").write_text(
        "import torch\ndef span(v): return torch.tensor(max(v) - min(v))\n"
    )
    scores = run(tmp_path, text, method=None, reset=lambda: resets.append(1))
    assert len(resets) == scores["samples"] == 31 and not scores["more"]
    assert scores["methods"] == ["f", "g"]
    values = scores["values"]
    assert values["range"]["value"] == 120 and values["range"]["scores"] is None
    assert values["mean"]["value"] == 60 and values["mean"]["scores"][3] == 12
    assert 60 < min(values["range"]["resampled"]) <= max(values["range"]["resampled"]) == 120
    opened = {path.removeprefix(f"{tmp_path}/") for path in scores["opened"]}
    assert {"metrics/m.py", "metrics/shared.py"} <= opened


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (METRIC, "metrics/m.py: has no function data(method)"),
        (DATA.format(3), "metrics/m.py: has no function metric(outputs, labels)"),
        (DATA.format(0) + METRIC, "metrics/m.py: data('f') yields no samples"),
        ("def data(m):\n    return 3\n" + METRIC,
         "metrics/m.py: data returns an int, must be an iterable of (inputs, label)"),
        ("def data(m):\n    yield 1.0, 2\n    yield 3.0\n" + METRIC,
         "metrics/m.py: data: sample 1 is a float, must be a tuple of inputs and label"),
        ("def data(m):\n    yield 'x', 2\n" + METRIC,
         "metrics/m.py: sample 0: RuntimeError: inconsistent tensor size"),
        (DATA.format(3) + "def metric(o, l):\n    return float('nan')\n",
         "metrics/m.py: metric returns nan, must be a finite number, or a dict of such"),
        (DATA.format(3) + "def metric(o, l):\n    return {'wer': 'low'}\n",
         "metrics/m.py: value 'wer' of metric is a str, must be a finite number"),
        (DATA.format(3) + "def metric(o, l):\n    pass\n",
         "metrics/m.py: metric returns None, must be a finite number"),
        (DATA.format(3) + "def metric(o, l):\n    return 1 / 0\n",
         "ZeroDivisionError: division by zero"),
        (DATA.format(3) + "def predict(p, x):\n    return p.h(x)\n" + METRIC,
         "metrics/m.py: sample 0: no method 'h'"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line(tmp_path, text, line):
    with pytest.raises(PipelineError) as error:
        run(tmp_path, text)
    assert str(error.value).startswith(line)


def test_several_methods_need_a_choice(tmp_path):
    line = (
        "metrics/m.py: the package has the methods f, g; set `method` in validate.metrics, or "
        "define predict"
    )
    with pytest.raises(PipelineError, match="^" + line.replace(".", r"\.")):
        run(tmp_path, DATA.format(3) + METRIC, method=None)


def test_data_that_stop_are_ended(tmp_path):
    text = "import time\ndef data(m):\n    time.sleep(60)\n    yield 1.0, 2\n" + METRIC
    with pytest.raises(PipelineError, match=r"called no method for 0\.2 s \(validate\.timeout\)"):
        run(tmp_path, text, timeout=0.2)


def test_data_are_ended_where_the_budget_is_spent(tmp_path):
    text = "def data(m):\n    while True:\n        yield 1.0, 2.0\n" + METRIC
    with pytest.raises(OutOfTimeError):
        run(tmp_path, text, samples=10**7, budget=Budget(0.2))


def test_files_that_native_code_opens_are_seen(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "held.safetensors")
    text = (
        "from safetensors.torch import load_file\n"
        "def data(m):\n"
        "    yield load_file('held.safetensors')['x'], 2.0\n"
    )
    scores = run(tmp_path, text + METRIC)
    assert str(tmp_path / "held.safetensors") in scores["opened"]
    assert scores["values"][""]["value"] == 1
