"""CounterNet's network: encoder h, predictor f and counterfactual generator g.

Symbols, as in the paper: x a row, z = h(x) its latent vector, p the predictor's last hidden layer,
x' = g(p, z) the counterfactual. Shapes: B rows, C continuous columns, K categorical columns,
D = C + sum(category sizes) the width of the encoded row.

The paper's other architectures are switches of the constructor: `separate`, `pass_prediction`, `block`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rows(NamedTuple):
    """Encoded rows without a one-hot matrix."""

    continuous: Tensor  # (B, C) float32, training range scaled to [0, 1]
    codes: Tensor  # (B, K) int64, index of the category

    def __len__(self) -> int:
        return self.codes.shape[0]

    def take(self, index: Tensor | slice) -> "Rows":
        """The rows at these positions, or of a slice."""
        if isinstance(index, slice):
            return Rows(self.continuous[index], self.codes[index])
        # Copies row by row; indexing copies number by number and takes three times as long.
        return Rows(self.continuous.index_select(0, index), self.codes.index_select(0, index))


@dataclass(frozen=True)
class Layout:
    """Where each raw feature stands in the encoded row: continuous columns first, then a block a category."""

    num_continuous: int
    category_sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.num_continuous + sum(self.category_sizes)

    @property
    def block_sizes(self) -> list[int]:
        """Widths of the parts of an encoded row: all numbers, then each category."""
        return [self.num_continuous, *self.category_sizes]

    @property
    def num_features(self) -> int:
        return self.num_continuous + len(self.category_sizes)

    @property
    def block_starts(self) -> list[int]:
        """First encoded column of each categorical block."""
        starts, position = [], self.num_continuous
        for size in self.category_sizes:
            starts.append(position)
            position += size
        return starts

    def no_rows(self, device: torch.device) -> Rows:
        """A batch of nothing."""
        no_codes = torch.empty(0, len(self.category_sizes), dtype=torch.int64, device=device)
        return Rows(torch.empty(0, self.num_continuous, device=device), no_codes)

    def dense(self, rows: Rows) -> Tensor:
        """The (B, D) matrix with hard one-hot blocks: for losses and distances, never to predict."""
        dense = rows.continuous.new_zeros(len(rows), self.width)
        dense[:, : self.num_continuous] = rows.continuous
        if self.category_sizes:
            dense.scatter_(1, rows.codes + _block_starts(self, rows.codes.device), 1.0)
        return dense


@cache
def _block_starts(layout: Layout, device: torch.device) -> Tensor:
    return torch.tensor(layout.block_starts, device=device)


class MixedLinear(nn.Module):
    """A linear layer on encoded rows: a product for continuous columns, a row gather for categories.

    The weight has a row per encoded column, so `F.linear` on the one-hot matrix and this gather are the
    same sum; the gather just never multiplies by zero.
    """

    block_offsets: Tensor

    def __init__(self, layout: Layout, out_features: int) -> None:
        super().__init__()
        self.num_continuous = layout.num_continuous
        self.weight = nn.Parameter(torch.empty(layout.width, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        offsets = [start - layout.num_continuous for start in layout.block_starts]
        self.register_buffer("block_offsets", torch.tensor(offsets, dtype=torch.int64), persistent=False)

    def forward(self, rows: Rows) -> Tensor:
        out = torch.addmm(self.bias, rows.continuous, self.weight[: self.num_continuous])
        if rows.codes.shape[1]:
            gathered = self.weight[self.num_continuous :]
            out = out + F.embedding_bag(rows.codes + self.block_offsets, gathered, mode="sum")
        return out

    def dense(self, x: Tensor) -> Tensor:
        """The same layer on a (B, D) matrix whose blocks may be soft."""
        return torch.addmm(self.bias, x, self.weight)


Block = Literal["linear", "conv"]
GeneratorKind = Literal["plain", "gated"]


class Layers(nn.Sequential):
    """Layers one after the other, without the look for hooks before each and without dropout where it is off.

    In a step of small batches such calls take as long as the arithmetic.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            if not isinstance(layer, nn.Dropout) or (layer.training and layer.p > 0):
                x = layer.forward(x)
        return x


def _blocks(sizes: Sequence[int], dropout: float, block: Block) -> Layers:
    """Hidden layers, each followed by LeakyReLU and dropout: fully connected, or convolutions of three positions."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        if block == "conv":
            layers.append(nn.Conv1d(width_in, width_out, kernel_size=3, padding=1))
        else:
            layers.append(nn.Linear(width_in, width_out))
        layers += [nn.LeakyReLU(), nn.Dropout(dropout)]
    return Layers(*layers)


class CounterNet(nn.Module):
    """Prediction and counterfactual in one forward pass, for any number of classes from two up.

    A gated g sees the encoded row beside p and z, and says for each raw feature whether it changes at all: what
    should stay is copied, not squeezed through z and made anew. It is also told the predicted class, where it may see
    p: at the border between two classes p hardly differs, but the way to the other class turns round.

    With `separate` g has an encoder of its own and sees nothing of h and f; without `pass_prediction` it
    sees z but not p. With `block="conv"` the first layer stays a `MixedLinear`, whose outputs are the positions
    of a signal with one channel; every later hidden layer is a 1-D convolution with as many channels as a linear
    one has units, so z and p are (B, channels, positions). The two output layers see all channels and positions.
    """

    feature_of_column: Tensor

    def __init__(
        self,
        layout: Layout,
        num_classes: int,
        encoder: Sequence[int],
        predictor: Sequence[int],
        generator: Sequence[int],
        dropout: float,
        generator_dropout: float = 0.0,
        separate: bool = False,
        pass_prediction: bool = True,
        block: Block = "linear",
        generator_kind: GeneratorKind = "plain",
    ) -> None:
        super().__init__()
        self.layout = layout
        self.num_classes = num_classes
        self.pass_prediction = pass_prediction and not separate
        # A linear layer's units are a signal's channels at a single position.
        signal, positions = (nn.Unflatten(1, (1, -1)), encoder[0]) if block == "conv" else (nn.Identity(), 1)
        h_widths = [1 if block == "conv" else encoder[0], *encoder[1:]]
        z_width, p_width = h_widths[-1], predictor[-1]
        self.encoder_in = MixedLinear(layout, encoder[0])
        self.encoder_in_activation = Layers(nn.LeakyReLU(), nn.Dropout(dropout), signal)
        self.encoder = _blocks(h_widths, dropout, block)
        self.predictor = _blocks([z_width, *predictor], dropout, block)
        self.classifier = nn.Linear(p_width * positions, num_classes)
        self.generator = _blocks([p_width * self.pass_prediction + z_width, *generator], generator_dropout, block)
        self.gated = generator_kind == "gated"
        gates = layout.num_features if self.gated else 0
        self.generator_out = nn.Linear(generator[-1] * positions, layout.width + gates)
        self.generator_skip = MixedLinear(layout, generator[0]) if self.gated else None
        sees_class = self.gated and self.pass_prediction
        told = torch.zeros(num_classes, generator[0])
        self.generator_class = nn.Embedding.from_pretrained(told, freeze=False) if sees_class else None
        features = [*range(layout.num_continuous)]
        for column, size in enumerate(layout.category_sizes):
            features += [layout.num_continuous + column] * size
        self.register_buffer("feature_of_column", torch.tensor(features, dtype=torch.int64), persistent=False)
        self.generator_encoder: nn.Sequential | None = None
        if separate:
            first = [MixedLinear(layout, encoder[0]), nn.LeakyReLU(), nn.Dropout(generator_dropout), signal]
            self.generator_encoder = nn.Sequential(*first, *_blocks(h_widths, generator_dropout, block))
        of_generator = [m for part in self.generator_parts() for m in part.modules() if isinstance(m, nn.Dropout)]
        rest = [
            m for m in self.modules() if isinstance(m, nn.Dropout) and all(m is not other for other in of_generator)
        ]
        self._dropouts = (rest, of_generator)
        self._initialise()

    def _initialise(self) -> None:
        """He initialisation, biases zero. MixedLinear's fan-in is its number of rows."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, a=0.01, nonlinearity="leaky_relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            elif isinstance(module, MixedLinear):
                nn.init.kaiming_normal_(module.weight, a=0.01, mode="fan_out", nonlinearity="leaky_relu")
                nn.init.zeros_(module.bias)

    def prediction_parameters(self) -> list[nn.Parameter]:
        """Weights of h and f, moved by stage 1."""
        parts = (self.encoder_in, self.encoder, self.predictor, self.classifier)
        return [weight for part in parts for weight in part.parameters()]

    def generator_parameters(self) -> list[nn.Parameter]:
        """Weights of g, moved by stage 2."""
        return [weight for part in self.generator_parts() for weight in part.parameters()]

    def generator_parts(self) -> list[nn.Module]:
        """The modules of g."""
        own_encoder = [self.generator_encoder] if self.generator_encoder is not None else []
        sees = [part for part in (self.generator_skip, self.generator_class) if part is not None]
        return [*own_encoder, *sees, self.generator, self.generator_out]

    def set_dropout(self, *, predictor: bool, generator: bool) -> None:
        """Turns dropout of h and f, and of g, on or off; cheaper than `train`, which visits every module."""
        for part, on in zip(self._dropouts, (predictor, generator), strict=True):
            for dropout in part:
                if dropout.training != on:  # looking is cheaper than setting
                    dropout.training = on

    def encode(self, rows: Rows) -> Tensor:
        """z = h(x) of hard rows."""
        return self.encoder(self.encoder_in_activation(self.encoder_in(rows)))

    def encode_dense(self, x: Tensor) -> Tensor:
        """z = h(x) of a (B, D) matrix, which may be a soft counterfactual."""
        return self.encoder(self.encoder_in_activation(self.encoder_in.dense(x)))

    def predict(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(p, class probabilities) of latent vectors."""
        p = self.predictor(z)
        return p, torch.softmax(self.classifier(p.flatten(1)), dim=1)

    def generator_latent(self, rows: Rows, z: Tensor) -> Tensor:
        """The z that g looks at: that of h, or of its own encoder."""
        return z if self.generator_encoder is None else self.generator_encoder(rows)

    def generate(self, p: Tensor, z: Tensor, rows: Rows | None = None) -> Tensor:
        """g's output before its last activations: (B, D), and a gate a feature beside it where g is gated.

        A gated g sees the rows and the predicted class too.
        """
        seen = torch.cat([p, z], dim=1) if self.pass_prediction else z
        if self.generator_skip is None or rows is None:
            return self.generator_out(self.generator(seen).flatten(1))
        first, *rest = self.generator
        hidden = first(seen) + self.generator_skip(rows)
        if self.generator_class is not None:
            hidden = hidden + self.generator_class(self.classifier(p).argmax(dim=1))
        for layer in rest:
            hidden = layer(hidden)
        return self.generator_out(hidden)

    def gates(self, raw: Tensor) -> Tensor | None:
        """(B, D) 1 where g changes a feature and 0 where it keeps the row's value; None: it changes all.

        Hard, so that training sees what will be written; the gradient is that of the soft gate (straight-through).
        """
        if not self.gated:
            return None
        soft = torch.sigmoid(raw[:, self.layout.width :])
        hard = (soft > 0.5).to(soft.dtype) + soft - soft.detach()
        return hard.index_select(1, self.feature_of_column)

    def soft(self, raw: Tensor) -> Tensor:
        """The differentiable x': sigmoid for continuous columns, a softmax for each categorical block."""
        # One split, not a slice a block: its gradient is one concatenation.
        numbers, *blocks = raw[:, : self.layout.width].split(self.layout.block_sizes, dim=1)
        return torch.cat([torch.sigmoid(numbers), *(torch.softmax(block, dim=1) for block in blocks)], dim=1)

    def hard(self, rows: Rows, raw: Tensor) -> Rows:
        """x' as rows: the likeliest category of each block, and the row's own value where a gate keeps it."""
        numbers, *blocks = raw[:, : self.layout.width].split(self.layout.block_sizes, dim=1)
        found = Rows(torch.sigmoid(numbers), torch.empty_like(rows.codes))
        for column, block in enumerate(blocks):
            torch.argmax(block, dim=1, out=found.codes[:, column])
        if not self.gated:
            return found
        changes = (raw[:, self.layout.width :] > 0).split([self.layout.num_continuous, len(blocks)], dim=1)
        return Rows(*(torch.where(*parts) for parts in zip(changes, found, rows, strict=True)))

    def forward(self, rows: Rows) -> tuple[Tensor, Rows]:
        """(class probabilities, hard counterfactual rows)."""
        z = self.encode(rows)
        p, probabilities = self.predict(z)
        return probabilities, self.hard(rows, self.generate(p, self.generator_latent(rows, z), rows))
