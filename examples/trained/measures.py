"""How well a model does its task: the same questions go to its eager module and to its packages.

A measure takes an object whose attributes are the model's methods, returning tensors or tuples of
tensors, and returns the model's answers. Annotations, or the way the inputs were made, tell which
answers are right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "models"))  # where doit's exporters find their imports, too


@dataclass(frozen=True)
class Answers:
    """Answers to the same questions, in order.

    Two answers that differ by at most `tolerance` count as the same. `right` has one bool per
    question whose answer is known, which may be fewer than all.
    """

    values: Tensor
    right: Tensor
    tolerance: float = 0.0

    def same(self, other: Answers) -> int:
        """Return how many of the other's answers agree with these."""
        return int(((self.values - other.values).abs() <= self.tolerance).sum())


@dataclass(frozen=True)
class Task:
    """The questions for a model, in words; its eager methods; and the measure."""

    question: str
    source: Callable[[], Any]
    answer: Callable[[Any], Answers]


def _detect_voice(methods: Any) -> Answers:
    """Is there speech in each window of the call? The state carries over from window to window."""
    import _speech  # type: ignore[import-not-found]
    import voice_detector  # type: ignore[import-not-found]

    state, found = voice_detector.begin(), []
    windows = voice_detector.windows()
    for window in windows:
        probability, state = methods.step(window, state)
        found.append(bool(probability > 0.5))
    spoken = torch.zeros(len(_speech.call()))
    for turn in _speech.turns():
        spoken[int(turn.begin * _speech.RATE) : int(turn.end * _speech.RATE)] = 1
    size = voice_detector.WINDOW_SIZE
    truth = spoken.unfold(0, size, size)[: len(windows)].mean(dim=1) > 0.5
    values = torch.tensor(found)
    return Answers(values.int(), values == truth)


def _voice_source() -> Any:
    import voice_detector

    return SimpleNamespace(step=voice_detector.load())


def _track_pitch(methods: Any) -> Answers:
    """What is the pitch, in cents, of each frame of gliding tones?"""
    import pitch_tracker as tracker  # type: ignore[import-not-found]

    values, truth = [], []
    for tone in ((70.0, 200.0, 0.7), (180.0, 900.0, 0.5), (110.0, 440.0, 0.9)):
        samples, pitch = tracker.glide(*tone)
        for batch in tracker.frames_of(samples)[:88].split(tracker.BATCH):
            values.append(tracker.cents(methods.pitch(batch)))
        middle = pitch.unfold(0, tracker.FRAME, tracker.HOP)[:88, tracker.FRAME // 2]
        truth.append(1200 * torch.log2(middle / 10))
    found = torch.cat(values)
    return Answers(found, (found - torch.cat(truth)).abs() <= 50, tolerance=20)


def _pitch_source() -> Any:
    import pitch_tracker

    return SimpleNamespace(pitch=pitch_tracker.load("tiny"))


def _find_paraphrase(methods: Any) -> Answers:
    """Which of all sentences means the same as this one, and does `score` prefer it to the next?"""
    import sentence_encoder as encoder  # type: ignore[import-not-found]

    firsts, seconds = (
        torch.cat([methods.encode(tokens) for tokens in encoder.tokens_of(*sentences)])
        for sentences in zip(*encoder.PARAPHRASES, strict=True)
    )
    best = (firsts @ seconds.T).argmax(dim=1)
    preferred = []
    pairs = [encoder.tokens_of(*pair) for pair in encoder.PARAPHRASES[:5]]
    for (first, second), (_, other) in pairwise(pairs):
        preferred.append(bool(methods.score(first, second) > methods.score(first, other)))
    prefers = torch.tensor(preferred)
    return Answers(
        torch.cat([best, prefers.long()]),
        torch.cat([best == torch.arange(len(best)), prefers]),
    )


def _sentence_source() -> Any:
    import sentence_encoder

    encode = sentence_encoder.load()
    return SimpleNamespace(encode=encode, score=sentence_encoder.Score(encode))


def _recognise_speaker(methods: Any) -> Answers:
    """Which of two speakers, known from other partial utterances, speaks in each one?"""
    import speaker_encoder as encoder  # type: ignore[import-not-found]

    states: list[tuple[str, Tensor]] = []
    for speaker, mels in encoder.partials():
        state = encoder.begin()
        for frames in encoder.calls(mels):
            state = methods.listen(frames, *state)
        states.append((speaker, state[0]))
    known, heard = states[1::2], states[::2]
    names = sorted({speaker for speaker, _ in known})
    values = []
    for _, state in heard:
        likeness = dict.fromkeys(names, 0.0)
        for speaker, other in known:
            count = sum(name == speaker for name, _ in known)
            likeness[speaker] += float(methods.compare(state, other)) / count
        values.append(max(range(len(names)), key=lambda index: likeness[names[index]]))
    truth = [names.index(speaker) for speaker, _ in heard]
    return Answers(torch.tensor(values), torch.tensor(values) == torch.tensor(truth))


def _speaker_source() -> Any:
    import speaker_encoder

    listen, embed = speaker_encoder.load()
    return SimpleNamespace(listen=listen, compare=speaker_encoder.Compare(embed))


def _classify_images(methods: Any) -> Answers:
    """What does each picture show? Six of the twenty have a class in ImageNet."""
    import image_classifier as classifier  # type: ignore[import-not-found]

    values, right = [], []
    for photograph, classes in classifier.PHOTOGRAPHS.items():
        for view in classifier.views(photograph):
            values.append(int(methods.classify(view).argmax()))
            right.append(values[-1] in classes)
    for (view,) in classifier.calibration_inputs("classify"):
        values.append(int(methods.classify(view).argmax()))
    return Answers(torch.tensor(values), torch.tensor(right))


def _image_source() -> Any:
    import image_classifier

    return SimpleNamespace(classify=image_classifier.load())


TASKS = {
    "image_classifier": Task("class of a photograph", _image_source, _classify_images),
    "pitch_tracker": Task(
        "pitch of gliding tones, within a quarter tone", _pitch_source, _track_pitch
    ),
    "sentence_encoder": Task("paraphrase of a sentence", _sentence_source, _find_paraphrase),
    "speaker_encoder": Task("identity of a speaker", _speaker_source, _recognise_speaker),
    "voice_detector": Task("speech or not, every 32 ms", _voice_source, _detect_voice),
}
