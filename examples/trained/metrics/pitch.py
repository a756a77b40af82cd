"""Raw pitch accuracy of CREPE on gliding tones: the share of frames within 50 cents of the pitch
that they were made with, and the median error in cents."""

import torch
from pitch_tracker import BATCH, FRAME, HOP, cents, frames_of, glide

TONES = 100
BATCHES = 3  # of each tone


def data(method):
    """Yield batches of neighboring frames, and their pitches in cents above 10 Hz: float32 [8,
    1024] and [8]. The tones' ranges are newly drawn, so none is in the calibration data."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(TONES):
        lowest, ratio, brightness = torch.rand(3, generator=generator).tolist()
        lowest = 60 + 340 * lowest
        samples, pitch = glide(lowest, lowest * (1.5 + 2 * ratio), 0.5 + 0.4 * brightness)
        truth = pitch.unfold(0, FRAME, HOP)[:, FRAME // 2]
        frames = frames_of(samples)
        for begin in torch.randint(80, (BATCHES,), generator=generator).tolist():
            batch = slice(begin, begin + BATCH)
            yield frames[batch], 1200 * torch.log2(truth[batch] / 10)


def metric(outputs, labels):
    errors = (cents(torch.cat(outputs)) - torch.cat(labels)).abs()
    return {"accuracy": (errors <= 50).double().mean(), "error": errors.median()}
