"""The one-vector descent against torch's own clipping and Adam, weight by weight."""

import copy

import torch
from torch import nn

from ray_cfnet.model.descent import Descent, as_one_vector


def test_a_step_is_that_of_torchs_fused_adam_to_the_last_bit() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(300))
    theirs = nn.Parameter(weight.detach().clone())
    descent = Descent(as_one_vector([weight]), [weight], clip=1e9)
    adam = torch.optim.Adam([theirs], fused=True)
    for step in range(5):
        x, rate = torch.randn(300), 0.01 / (step + 1)
        descent.begin([(weight * x).square().sum()], [1.0], 1, rate)
        descent.finish()
        adam.zero_grad()
        (theirs * x).square().sum().backward()
        adam.param_groups[0]["lr"] = rate
        adam.step()
        assert torch.equal(weight, theirs)


def test_clipped_steps_are_those_of_torch_on_separate_weights() -> None:
    """Adam forgets the size of a single gradient: only gradients of very different sizes show that they are clipped."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(), nn.Linear(3, 2)).double()
    theirs = copy.deepcopy(ours)
    weights = list(ours.parameters())
    descent = Descent(as_one_vector(weights), weights, clip=0.5)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.05)
    sizes = []
    for step in range(8):
        x, factor = torch.randn(16, 4, dtype=torch.float64), (20.0 if step % 2 else 0.02)
        adam.zero_grad()
        (theirs(x).square().sum() * factor / 16).backward()
        sizes.append(float(nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)))
        adam.step()
        descent.begin([ours(x).square().sum()], [factor], 16, rate=0.05)
        descent.finish()
        for mine, other in zip(weights, theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)
    assert min(sizes) < 0.5 < max(sizes), "both kinds of gradients were there"
