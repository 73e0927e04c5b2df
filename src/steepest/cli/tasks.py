"""The tasks: real data that comes with scikit-learn and Python, its split, a model and a loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor
from torch.nn import functional

from steepest.cli.errors import unknown
from steepest.cli.metrics import ACCURACY, BITS_PER_CHARACTER, R_SQUARED, Metric
from steepest.cli.models import ConvolutionalNetwork, Network, Perceptron, Transformer

CONTEXT = 64  # characters that the transformer sees


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets of the same length; indexing takes both."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Tensor | slice) -> Split:
        return Split(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what, and how it is judged.

    Attributes:
        name: as on the command line.
        description: one line for the title.
        train: what batches are drawn from.
        train_evaluation: the part of the training data that the final training loss is taken over.
        validation: chooses learning rates in a sweep.
        test: gives the reported metric.
        build: makes the untrained model; draws from torch's global generator.
        loss: mean loss from outputs and targets.
        metric: what is reported on ``test``.
        batch_size: rows in a batch.
        steps: default number of steps.
    """

    name: str
    description: str
    train: Split
    train_evaluation: Split
    validation: Split
    test: Split
    build: Callable[[], Network]
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Metric
    batch_size: int
    steps: int

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all data, which differ between versions of their source."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            for part in (split.inputs, split.targets):
                digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def batches(size: int, batch_size: int, *, steps: int, seed: int) -> Tensor:
    """Return row numbers ``(steps, batch_size)``: shuffled epochs, a function of the seed alone.

    Args:
        size: number of rows to draw from.
        batch_size: rows in a batch.
        steps: number of batches.
        seed: of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    epochs = math.ceil(steps * batch_size / size)
    order = torch.cat([torch.randperm(size, generator=generator) for _ in range(epochs)])
    return order[: steps * batch_size].view(steps, batch_size)


def split_rows(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row numbers for training (60 %), validation (20 %) and test (20 %), a fixed draw."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    first, second = round(0.6 * size), round(0.8 * size)
    return order[:first], order[first:second], order[second:]


def unique_text() -> str:
    """Return the help topics of Python without repeated paragraphs.

    Some topics contain others whole. Without repetition no paragraph of the test text can be in
    the training text.
    """
    paragraphs: dict[str, str] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(paragraphs.values())


def _windows(characters: Tensor, *, stride: int) -> Split:
    pieces = characters.unfold(0, CONTEXT + 1, stride)
    return Split(pieces[:, :-1], pieces[:, 1:])


def _text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _digits() -> Task:
    data = load_digits()
    images = torch.from_numpy(data.data).float() / 16.0
    labels = torch.from_numpy(data.target).long()
    train, validation, test = (Split(images[r], labels[r]) for r in split_rows(len(images)))
    return Task(
        name="digits",
        description="handwritten digits, multilayer perceptron",
        train=train,
        train_evaluation=train,
        validation=validation,
        test=test,
        build=lambda: Perceptron((64, 128, 128, 10)),
        loss=functional.cross_entropy,
        metric=ACCURACY,
        batch_size=64,
        steps=200,
    )


def _digits_convolutional() -> Task:
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16.0
    labels = torch.from_numpy(data.target).long()
    train, validation, test = (Split(images[r], labels[r]) for r in split_rows(len(images)))
    return Task(
        name="digits-conv",
        description="handwritten digits, convolutional network",
        train=train,
        train_evaluation=train,
        validation=validation,
        test=test,
        build=lambda: ConvolutionalNetwork(16, 10),
        loss=functional.cross_entropy,
        metric=ACCURACY,
        batch_size=64,
        steps=200,
    )


def _text() -> Task:
    text = unique_text()
    alphabet = {character: code for code, character in enumerate(sorted(set(text)))}
    characters = torch.tensor([alphabet[character] for character in text])
    first, second = round(0.8 * len(text)), round(0.9 * len(text))
    train = characters[:first]
    return Task(
        name="text",
        description="Python's help topics by character, transformer",
        train=_windows(train, stride=1),
        train_evaluation=_windows(train, stride=8 * CONTEXT),
        validation=_windows(characters[first:second], stride=CONTEXT),
        test=_windows(characters[second:], stride=CONTEXT),
        build=lambda: Transformer(len(alphabet), CONTEXT, width=64, layers=2, heads=4),
        loss=_text_loss,
        metric=BITS_PER_CHARACTER,
        batch_size=32,
        steps=400,
    )


def _diabetes() -> Task:
    data = load_diabetes(scaled=False)
    inputs = torch.from_numpy(data.data).double()
    targets = torch.from_numpy(data.target).double().unsqueeze(1)
    rows = split_rows(len(inputs))
    # of the training rows alone: the others must not be seen before they are judged
    inputs = (inputs - inputs[rows[0]].mean(0)) / inputs[rows[0]].std(0)
    targets = (targets - targets[rows[0]].mean(0)) / targets[rows[0]].std(0)
    train, validation, test = (Split(inputs[r].float(), targets[r].float()) for r in rows)
    return Task(
        name="diabetes",
        description="progression of diabetes, regression by a multilayer perceptron",
        train=train,
        train_evaluation=train,
        validation=validation,
        test=test,
        build=lambda: Perceptron((10, 64, 64, 1)),
        loss=functional.mse_loss,
        metric=R_SQUARED,
        batch_size=64,
        steps=200,
    )


TASKS: dict[str, Callable[[], Task]] = {
    "digits": _digits,
    "digits-conv": _digits_convolutional,
    "text": _text,
    "diabetes": _diabetes,
}


def load_task(name: str) -> Task:
    """Return the task of this name.

    Args:
        name: a key of ``TASKS``.

    Raises:
        BadInputError: for another name; its text lists the tasks.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]()
