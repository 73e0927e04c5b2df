"""The networks that the tasks train. Each names its output layer ``head``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, arange, nn, no_grad
from torch.nn import functional

from steepest import qk_clip_


class Network(nn.Module):
    """A module whose output layer is ``head``."""

    head: nn.Linear

    def bound_logits(self, threshold: float) -> None:
        """Bound attention logits by QK-clip from now on.

        Args:
            threshold: largest logit that is left as it is.

        Raises:
            ValueError: for a model without attention.
        """
        raise ValueError(f"qk_clip={threshold:g} needs a model with attention, as in the task text")

    def after_step(self) -> None:
        """Do what the model wants done to its weights after each step; nothing by default."""


class Perceptron(Network):
    """A multilayer perceptron with ReLU.

    Args:
        sizes: widths from input to output.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(map(nn.Linear, sizes[:-2], sizes[1:-1]))
        self.head = nn.Linear(sizes[-2], sizes[-1])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs ``(batch, sizes[-1])``."""
        for layer in self.hidden:
            inputs = functional.relu(layer(inputs))
        output: Tensor = self.head(inputs)
        return output


class ConvolutionalNetwork(Network):
    """Two convolutions and two linear layers for 8 × 8 images.

    Args:
        channels: of the first convolution; the second has twice as many.
        classes: number of outputs.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.hidden = nn.Linear(2 * channels * 2 * 2, 4 * channels)
        self.head = nn.Linear(4 * channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, classes)`` of images ``(batch, 1, 8, 8)``."""
        features = functional.max_pool2d(functional.relu(self.first(images)), 2)
        features = functional.max_pool2d(functional.relu(self.second(features)), 2)
        logits: Tensor = self.head(functional.relu(self.hidden(features.flatten(1))))
        return logits


class _Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a normalization.

    Query, key and value are layers of their own, so that each is one matrix for the optimizer.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.threshold: float | None = None
        self.max_logits: Tensor | None = None
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.feedforward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def _split(self, features: Tensor) -> Tensor:
        batch, length, width = features.shape
        return features.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, stream: Tensor) -> Tensor:
        features = self.attention_norm(stream)
        query, key = self._split(self.query(features)), self._split(self.key(features))
        if self.threshold is not None and self.training:
            self.max_logits = _max_logits(query, key)
        mixed = functional.scaled_dot_product_attention(
            query, key, self._split(self.value(features)), is_causal=True
        )
        stream = stream + self.output(mixed.transpose(1, 2).flatten(2))
        grown: Tensor = stream + self.down(functional.gelu(self.up(self.feedforward_norm(stream))))
        return grown


@no_grad()
def _max_logits(query: Tensor, key: Tensor) -> Tensor:
    """Largest causal logit of each head, over batch and positions."""
    logits = query @ key.mT / query.shape[-1] ** 0.5
    largest: Tensor = logits.tril().amax(dim=(0, 2, 3))
    return largest


class Transformer(Network):
    """A small causal transformer over characters.

    Args:
        vocabulary: number of characters.
        context: longest input.
        width: of the residual stream.
        layers: number of blocks.
        heads: of attention, a divisor of ``width``.
    """

    def __init__(
        self, vocabulary: int, context: int, *, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = [_Block(width, heads) for _ in range(layers)]
        self.blocks = nn.ModuleList(self.layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def bound_logits(self, threshold: float) -> None:
        """Bound attention logits by QK-clip from now on."""
        for block in self.layers:
            block.threshold = threshold

    def after_step(self) -> None:
        """Shrink the query and key weights of heads whose logits were too large."""
        for block in self.layers:
            if block.threshold is not None and block.max_logits is not None:
                qk_clip_(
                    block.query.weight,
                    block.key.weight,
                    block.max_logits,
                    threshold=block.threshold,
                )

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits ``(batch, length, vocabulary)`` of characters ``(batch, length)``."""
        places = arange(characters.shape[1], device=characters.device)
        stream = self.characters(characters) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.head(self.norm(stream))
        return logits
