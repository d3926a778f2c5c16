"""Muon for the matrices and AdamW for the rest, with one learning-rate scale for both."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
# Quintic Newton-Schulz iteration towards the nearest orthogonal matrix (Keller Jordan, Muon, 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def is_large_matrix(parameter: Tensor) -> bool:
    """Whether Muon takes it: both sides (of each matrix in a stack) are at least 64."""
    return parameter.dim() >= 2 and min(parameter.shape[-2:]) >= 64


def orthogonalise(stack: Tensor) -> Tensor:
    """The nearest orthogonal matrix of each `[rows, columns]` in a stack, rows <= columns, in bfloat16."""
    a, b, c = NEWTON_SCHULZ
    X = (stack / (stack.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)).bfloat16()
    for _ in range(NEWTON_SCHULZ_STEPS):
        A = X @ X.transpose(1, 2)
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X.float()


class Muon:
    """Momentum, then an orthogonal update; matrices of equal shape go through one batched product."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 0.02, weight_decay: float = 0.0
    ) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for parameter in parameters:
            rows, columns = parameter.shape[-2:]
            self.groups.setdefault((min(rows, columns), max(rows, columns)), []).append(parameter)
        self.momentum = {p: torch.zeros_like(p) for group in self.groups.values() for p in group}

    def parameter_count(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.momentum)

    def _direction(self, parameter: nn.Parameter, rows: int) -> Tensor:
        """Nesterov momentum of one parameter as a stack of matrices that are at most square."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        momentum = self.momentum[parameter].mul_(MOMENTUM).add_(gradient)
        direction = (gradient + MOMENTUM * momentum).view(-1, *parameter.shape[-2:])
        return direction if direction.shape[-2] == rows else direction.transpose(1, 2)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update with `scale` times the learning rate."""
        lr = self.lr * scale
        for (rows, columns), group in self.groups.items():
            updates = orthogonalise(torch.cat([self._direction(p, rows) for p in group]))
            at = 0
            for p in group:
                count = p.numel() // (rows * columns)
                update = updates[at : at + count]
                at += count
                if p.shape[-2] != rows:
                    update = update.transpose(1, 2)
                shape_scale = max(1, p.shape[-2] / p.shape[-1]) ** 0.5
                p.mul_(1 - lr * self.weight_decay).add_(update.reshape(p.shape), alpha=-lr * shape_scale)


class ScaledAdam:
    """AdamW with a learning rate per group and a common scale, gradients clipped to a norm of 1."""

    def __init__(self, groups: list[tuple[list[nn.Parameter], float]]) -> None:
        self.rates = [rate for _, rate in groups]
        self.parameters = [p for parameters, _ in groups for p in parameters]
        options = [{"params": parameters, "lr": rate} for parameters, rate in groups]
        self.adam = torch.optim.AdamW(options, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, scale: float) -> float:
        """One update with `scale` times the learning rates; gives the norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group, rate in zip(self.adam.param_groups, self.rates, strict=True):
            group["lr"] = rate * scale
        self.adam.step()
        return float(norm)
