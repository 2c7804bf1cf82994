"""The flow-matching objective, as plain functions (arXiv:2210.02747, arXiv:2403.03206).

u ~ sigmoid(N(0, 1)); index = clamp(floor(u N), 0, N - 1); sigma from the schedule's table;
x_t = (1 - sigma) x + sigma e; target e - x; loss = weighted mean squared error in fp32.
"""

import torch


def draw_indexes(count: int, num_timesteps: int, generator: torch.Generator) -> torch.Tensor:
    """(count,) int64, logit-normal over 0..num_timesteps-1. No other setting changes the draw."""
    u = torch.sigmoid(torch.randn(count, generator=generator))
    return (u * num_timesteps).floor().clamp(0, num_timesteps - 1).long()


def add_noise(x: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """x_t of latents and noise (batch, channels, height, width) at sigma (batch,)."""
    share = sigma.to(x.device).view(-1, *[1] * (x.ndim - 1))
    return (1.0 - share) * x + share * noise


def velocity_target(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """e - x, what the model learns to predict."""
    return noise - x


def squared_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(batch,) mean squared error of each item, in fp32."""
    return (prediction.float() - target.float()).square().flatten(1).mean(dim=1)


def weighted_loss(errors: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Mean over the batch of per-item errors (batch,), times their weights (batch,) if given."""
    if weights is None:
        return errors.mean()
    return (errors * weights.to(errors.device)).mean()


def bell_weights(num_timesteps: int) -> torch.Tensor:
    """(num_timesteps,) mid-schedule Gaussian loss weights, 0 at the ends, mean 1."""
    middle = num_timesteps / 2
    position = torch.arange(num_timesteps, dtype=torch.float64)
    bell = torch.exp(-2.0 * ((position - middle) / num_timesteps).square())
    bell = bell - bell.min()
    return (bell / bell.mean()).float()
