"""Resemblyzer's speaker encoder, fed a tenth of a second at a time.

The weights are `pretrained.pt` of Resemblyzer 0.1.4 (Apache-2.0), and the arithmetic follows its
`VoiceEncoder`. The LSTM is written out as linear layers, which quantizers support, and carries its
state from call to call: a partial utterance of 1.6 s is sixteen calls of `listen`.
"""

import torch
from _speech import RATE, call, turns
from _wheels import wheel_file
from torch import Tensor, nn
from torch.export import ExportedProgram, export

BANDS, WIDTH, LAYERS = 40, 256, 3
STEP = RATE // 100  # samples between frames
FRAMES = 10  # frames per call
PARTIAL = 160  # frames of a partial utterance


class Layer(nn.Module):
    """One layer of the LSTM; all frames of a call go through its input weights at once."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * WIDTH)
        self.from_hidden = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, frames: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        inputs, outputs = self.from_input(frames), []
        for frame in range(FRAMES):
            gates = inputs[:, frame] + self.from_hidden(hidden)
            write, forget, new, read = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(new)
            hidden = torch.sigmoid(read) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), hidden, cell


class Listen(nn.Module):
    """Updates the state with mel frames."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for width in (BANDS, WIDTH, WIDTH))

    def forward(self, mels: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        hiddens, cells = [], []
        for index, layer in enumerate(self.layers):
            mels, last_hidden, last_cell = layer(mels, hidden[index], cell[index])
            hiddens.append(last_hidden)
            cells.append(last_cell)
        return torch.stack(hiddens), torch.stack(cells)


class Embed(nn.Module):
    """Turns the state at the end of a partial utterance into a unit vector for the voice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        voice = torch.relu(self.linear(hidden[-1]))
        return voice / torch.norm(voice, dim=1, keepdim=True)


class Compare(nn.Module):
    """Embeds two states and returns the cosine of the angle between the voices."""

    def __init__(self, embed: Embed) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return (self.embed(first) * self.embed(second)).sum(dim=1)


def load() -> tuple[Listen, Embed]:
    """Return the two parts of the encoder, with the trained weights."""
    path = wheel_file("resemblyzer/pretrained.pt")
    weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    listen, embed = Listen().requires_grad_(False).eval(), Embed().requires_grad_(False).eval()
    for index, layer in enumerate(listen.layers):
        for linear, kind in ((layer.from_input, "ih"), (layer.from_hidden, "hh")):
            linear.weight.copy_(weights[f"lstm.weight_{kind}_l{index}"])
            linear.bias.copy_(weights[f"lstm.bias_{kind}_l{index}"])
    embed.linear.weight.copy_(weights["linear.weight"])
    embed.linear.bias.copy_(weights["linear.bias"])
    return listen, embed


def mel_frames(samples: Tensor) -> Tensor:
    """Return the mel spectrogram that Resemblyzer takes from librosa: float32 [frames, 40]."""
    from transformers.audio_utils import mel_filter_bank  # needed for inputs only

    options = {"norm": "slaney", "mel_scale": "slaney"}
    filters = mel_filter_bank(201, BANDS, 0.0, RATE / 2, RATE, **options)
    spectrum = torch.stft(
        samples, 400, STEP, window=torch.hann_window(400), pad_mode="constant", return_complex=True
    )
    return (spectrum.abs() ** 2).T @ torch.from_numpy(filters).float()


def partials() -> list[tuple[str, Tensor]]:
    """Return the partial utterances of the call, each with its speaker: float32 [160, 40].

    The turns of a speaker are joined, so no partial contains the other one's voice.
    """
    recording, voices = call(), {}
    level = 10 ** (-30 / 20) / recording.square().mean().sqrt()
    recording = recording * level.clamp(min=1)  # to -30 dBFS, as Resemblyzer does
    for turn in turns():
        samples = recording[int(turn.begin * RATE) : int(turn.end * RATE)]
        voices.setdefault(turn.speaker, []).append(samples)
    pieces = []
    for speaker, samples in voices.items():
        mels = mel_frames(torch.cat(samples))
        pieces += [(speaker, mels[at : at + PARTIAL]) for at in range(0, len(mels) - PARTIAL, 80)]
    return pieces


def begin() -> tuple[Tensor, Tensor]:
    """Return the state before the first frame: hidden and cell, float32 [3, 1, 256]."""
    return torch.zeros(LAYERS, 1, WIDTH), torch.zeros(LAYERS, 1, WIDTH)


def calls(mels: Tensor) -> list[Tensor]:
    """Return the frames of a partial utterance, split into calls of `listen`."""
    return list(mels.reshape(-1, 1, FRAMES, BANDS))


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `listen` to ten frames, `embed` a state, and `compare` two states."""
    listen, embed = load()
    compare = Compare(embed)
    hidden, cell = begin()
    return {
        "listen": (export(listen, (torch.zeros(1, FRAMES, BANDS), hidden, cell)), listen),
        "embed": (export(embed, (hidden,)), embed),
        # Two tensors: given one tensor twice, torch.export would merge them into one input.
        "compare": (export(compare, (hidden, cell)), compare),
    }


def example_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return every second partial utterance of the call."""
    return _inputs(method, partials()[::2])


def calibration_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return the other partial utterances."""
    return _inputs(method, partials()[1::2])


def _inputs(method: str, pieces: list[tuple[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    listen, _ = load()
    listened, states = [], []
    for _, mels in pieces:
        state = begin()
        for frames in calls(mels):
            listened.append((frames, *state))
            state = listen(frames, *state)
        states.append(state[0])
    if method == "listen":
        return listened[::12]
    if method == "embed":
        return [(state,) for state in states]
    return [(first, second) for first in states[::5] for second in states[1::4]]
