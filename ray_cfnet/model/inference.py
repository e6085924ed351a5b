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
        logits, z, p = self._from_first_layer(first)
        return Prediction(torch.softmax(logits, dim=0), z, p)

    @torch.inference_mode()
    def logits_from(self, first: Tensor) -> Tensor:
        """(classes, B) what softmax makes probabilities of. The first layer is overwritten."""
        return self._from_first_layer(first)[0]

    @torch.inference_mode()
    def slope(self, first: Tensor, desired: Tensor) -> tuple[Tensor, Tensor]:
        """The lead of the desired class (B,), and how it grows with each unit of the (B, units) first layer."""
        net = self.net
        if self._has_convolutions:
            with torch.inference_mode(False), torch.enable_grad():
                given, desired = first.clone().requires_grad_(), desired.clone()
                p = net.predictor(net.encoder(net.encoder_in_activation(given)))
                leads = lead(net.classifier(p.flatten(1)).T, desired)
                (slope,) = torch.autograd.grad(leads.sum(), given)
            return leads.detach(), slope
        # By hand: autograd keeps more and takes longer. A result has the sign of what it was made of.
        passed: list[tuple[nn.Linear | nn.LeakyReLU, Tensor]] = []
        x = first.clone().T
        for layer in chain(net.encoder_in_activation, net.encoder, net.predictor):
            if isinstance(layer, nn.Linear | nn.LeakyReLU):
                x = _hidden([layer], x)
                passed.append((layer, x))
        logits, weight = _linear(net.classifier, x), net.classifier.weight
        if len(weight) == 2:
            slope = torch.outer(weight[1] - weight[0], (2 * desired - 1).to(x.dtype))
        else:
            others = logits.scatter(0, desired[None], -torch.inf).argmax(dim=0)
            slope = (weight[desired] - weight[others]).T.contiguous()
        for layer, made in reversed(passed):
            if isinstance(layer, nn.LeakyReLU):
                slope = torch.ops.aten.leaky_relu_backward(slope, made, layer.negative_slope, True)
            elif layer is passed[1][0]:  # before it is the first layer, which has rows first
                slope = (slope.T @ layer.weight).T
            else:
                slope = layer.weight.T @ slope
        slope = slope.T
        return lead(logits, desired), slope

    def _from_first_layer(self, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        net = self.net
        if self._has_convolutions:  # they want the rows first
            z = net.encoder(net.encoder_in_activation(first.T))
            p = net.predictor(z)
            return net.classifier(p.flatten(1)).T, z, p
        z = _hidden(chain(net.encoder_in_activation, net.encoder), first)
        p = _hidden(net.predictor, z)
        return _linear(net.classifier, p), z, p

    @torch.inference_mode()
    def generate(self, rows: Rows, seen: Prediction) -> tuple[Tensor, list[Tensor]]:
        """The hard counterfactuals of predicted rows: numbers (C, B), and the codes (B,) of each category."""
        raw = self._raw(rows, seen)
        layout = self.net.layout
        numbers, *blocks, gates = raw.split([*layout.block_sizes, len(raw) - layout.width])
        numbers, codes = torch.sigmoid(numbers), [likeliest(block) for block in blocks]
        if self.net.gated:
            changes = gates > 0
            numbers = torch.where(changes[: layout.num_continuous], numbers, rows.continuous.T)
            pairs = zip(changes[layout.num_continuous :], codes, rows.codes.unbind(1), strict=True)
            codes = [torch.where(change, code, own) for change, code, own in pairs]
        return numbers, codes

    def _raw(self, rows: Rows, seen: Prediction) -> Tensor:
        """g's output before its last activations, (D, B)."""
        net = self.net
        if self._has_convolutions:
            return net.generate(seen.p, net.generator_latent(rows, seen.z), rows).T.contiguous()
        z = seen.z
        if net.generator_encoder is not None:
            first, *rest = net.generator_encoder
            assert isinstance(first, MixedLinear)  # noqa: S101
            z = _hidden(rest, _first_layer(first, rows))
        first, *rest = net.generator
        assert isinstance(first, nn.Linear)  # noqa: S101
        hidden = _linear(first, torch.cat([seen.p, z]) if net.pass_prediction else z)
        if net.generator_skip is not None:
            hidden += _first_layer(net.generator_skip, rows)
        if net.generator_class is not None:
            hidden += net.generator_class.weight.T.index_select(1, likeliest(seen.probabilities))
        hidden = _hidden(rest, hidden)
        return _linear(net.generator_out, hidden)


def lead(logits: Tensor, desired: Tensor) -> Tensor:
    """(B,) by how much the desired class leads the likeliest other, of (classes, B) logits."""
    if len(logits) == 2:
        return (logits[1] - logits[0]) * (2 * desired - 1)
    return logits.gather(0, desired[None])[0] - logits.scatter(0, desired[None], -torch.inf).amax(dim=0)


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
