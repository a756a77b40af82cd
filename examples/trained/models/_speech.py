"""Half a minute of a telephone call between two people, and who speaks when.

The recording is the sample of pyannote.audio; people annotated its turns.
"""

import wave
from dataclasses import dataclass

import torch
from _wheels import wheel_file
from torch import Tensor

RATE = 16000  # samples per second


@dataclass(frozen=True)
class Turn:
    """A stretch in which one speaker talks without a break, in seconds."""

    speaker: str
    begin: float
    end: float


def call() -> Tensor:
    """Return the recording: float32 [480000], between -1 and 1."""
    with wave.open(str(wheel_file("pyannote/audio/sample/sample.wav"))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        samples = bytearray(file.readframes(file.getnframes()))
    return torch.frombuffer(samples, dtype=torch.int16) / 2**15


def turns() -> list[Turn]:
    """Return the annotated turns, in order."""
    lines = wheel_file("pyannote/audio/sample/sample.rttm").read_text().splitlines()
    fields = [line.split() for line in lines]
    return [Turn(field[7], float(field[3]), float(field[3]) + float(field[4])) for field in fields]
