"""Finds the class of transformers that reads a folder, by the model's task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.features.transformers.hugging_face import Model, import_transformers
from pipeline.store.errors import SourceError, did_you_mean

_PREFIX = "AutoModelFor"
# As in `transformers.pipelines.SUPPORTED_TASKS`, without the prefix; also tasks of older releases
# that models still name.
TASKS = {
    "audio-classification": ("AudioClassification",),
    "automatic-speech-recognition": ("SpeechSeq2Seq", "CTC"),
    "depth-estimation": ("DepthEstimation",),
    "feature-extraction": ("",),
    "fill-mask": ("MaskedLM",),
    "image-classification": ("ImageClassification",),
    "image-feature-extraction": ("",),
    "image-segmentation": (
        "SemanticSegmentation",
        "ImageSegmentation",
        "UniversalSegmentation",
    ),
    "image-text-to-text": ("ImageTextToText",),
    "object-detection": ("ObjectDetection",),
    "question-answering": ("QuestionAnswering",),
    "text-classification": ("SequenceClassification",),
    "text-generation": ("CausalLM",),
    "text-to-audio": ("TextToWaveform", "TextToSpectrogram"),
    "text2text-generation": ("Seq2SeqLM",),
    "token-classification": ("TokenClassification",),
    "video-classification": ("VideoClassification",),
    "zero-shot-image-classification": ("ZeroShotImageClassification",),
    "zero-shot-object-detection": ("ZeroShotObjectDetection",),
}


def find_auto_class(model: Model, task: str) -> str:
    """Return the name of the class that reads a model's folder.

    Among the classes of the task, it is the one that knows the model's architecture. Without a
    task, it is `AutoModel`.

    Raises SourceError for an unknown task.
    """
    if task and task not in TASKS:
        raise SourceError(f"task: no '{task}'; {did_you_mean(task, sorted(TASKS))}")
    names = [
        f"{_PREFIX}{name}" if name else "AutoModel" for name in TASKS.get(task, ("",))
    ]
    if (
        len(names) == 1
        or isinstance(model, torch.nn.Module)
        or not (Path(model) / "config.json").is_file()
    ):
        return names[0]
    transformers = import_transformers()
    config = transformers.AutoConfig.from_pretrained(
        Path(model), local_files_only=True, trust_remote_code=False
    )
    return next((n for n in names if _knows(transformers, n, config)), names[0])


def _knows(transformers: Any, name: str, config: Any) -> bool:
    return type(config) in getattr(transformers, name)._model_mapping
