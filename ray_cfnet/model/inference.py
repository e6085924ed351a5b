"""A trained network on many rows at once: the sums of `CounterNet`, laid out for speed.

After the first layer every unit is one contiguous vector over the rows, (units, B). Softmax over two classes and
the choice of a category then run along vectors of thousands; along rows of two or five numbers they cost more than
all matrix products together. Nothing is copied from the network: it may go on training.
"""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_cfnet.model.net import CounterNet, MixedLinear, Rows


class Prediction(NamedTuple):
    """What h and f say about B rows."""

    probabilities: Tensor  # (classes, B)
    z: Tensor  # (units, B); of convolutions as the network has it, rows first
    p: Tensor


class Inference:
    """Predictions and counterfactuals without gradients and dropout. `rows` may be column-major."""

    def __init__(self, net: CounterNet) -> None:
        self.net = net.eval()
        self._has_convolutions = any(isinstance(module, nn.Conv1d) for module in net.modules())

    @torch.inference_mode()
    def predict(self, rows: Rows) -> Prediction:
        """Class probabilities, and what `generate` needs of them."""
        return self.predict_from(self.first_layer(rows))

    @torch.inference_mode()
    def first_layer(self, rows: Rows) -> Tensor:
        """h's first layer before its activation, (units, B), a view of rows. Linear in every feature."""
        return _first_layer(self.net.encoder_in, rows)

    @torch.inference_mode()
    def predict_from(self, first: Tensor) -> Prediction:
        """`predict` from the first layer on, which is overwritten."""
        net = self.net
        if self._has_convolutions:  # they want the rows first
            z = net.encoder(net.encoder_in_activation(first.T))
            p, probabilities = net.predict(z)
            return Prediction(probabilities.T, z, p)
        z = _hidden(chain(net.encoder_in_activation, net.encoder), first)
        p = _hidden(net.predictor, z)
        return Prediction(torch.softmax(_linear(net.classifier, p), dim=0), z, p)

    @torch.inference_mode()
    def generate(self, rows: Rows, seen: Prediction) -> tuple[Tensor, list[Tensor]]:
        """The hard counterfactuals of predicted rows: numbers (C, B), and the codes (B,) of each category."""
        raw = self._raw(rows, seen)
        numbers, *blocks = raw.split([self.net.layout.num_continuous, *self.net.layout.category_sizes])
        return torch.sigmoid(numbers), [likeliest(block) for block in blocks]

    def _raw(self, rows: Rows, seen: Prediction) -> Tensor:
        """g's output before its last activations, (D, B)."""
        net = self.net
        if self._has_convolutions:
            return net.generate(seen.p, net.generator_latent(rows, seen.z)).T.contiguous()
        z = seen.z
        if net.generator_encoder is not None:
            first, *rest = net.generator_encoder
            assert isinstance(first, MixedLinear)  # noqa: S101
            z = _hidden(rest, _first_layer(first, rows))
        hidden = _hidden(net.generator, torch.cat([seen.p, z]) if net.pass_prediction else z)
        return _linear(net.generator_out, hidden)


def likeliest(scores: Tensor) -> Tensor:
    """(B,) the first largest of (labels, B) scores: `argmax(dim=0)`, about ten times as fast on a CPU.

    Max-pooling over an image with its channels last is the same search, and the one that torch vectorises.
    """
    num_labels, num_rows = scores.shape
    if num_rows == 0:  # pooling refuses an image of no channels
        return scores.argmax(dim=0)
    image = scores.contiguous().view(1, num_labels, 1, num_rows).permute(0, 3, 1, 2)
    return F.max_pool2d(image, (num_labels, 1), return_indices=True)[1].view(num_rows)


def _first_layer(layer: MixedLinear, rows: Rows) -> Tensor:
    """(units, B), a view of rows: a gather reads whole rows of the weight."""
    of_numbers, of_categories = layer.weight[: layer.num_continuous], layer.weight[layer.num_continuous :]
    if rows.codes.shape[1] == 0:
        return torch.addmm(layer.bias, rows.continuous, of_numbers).T
    positions = torch.empty(rows.codes.shape, dtype=rows.codes.dtype, device=rows.codes.device)
    torch.add(rows.codes, layer.block_offsets, out=positions)  # one pass that also puts them in row order
    gathered = F.embedding_bag(positions, of_categories, mode="sum")
    return gathered.add_(layer.bias).addmm_(rows.continuous, of_numbers).T


def _hidden(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Fully connected layers on (units, B); the activations overwrite what nobody else holds."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x = _linear(layer, x)
        elif isinstance(layer, nn.LeakyReLU):
            x = F.leaky_relu_(x, layer.negative_slope)
    return x


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch.addmm(layer.bias[:, None], layer.weight, x)
