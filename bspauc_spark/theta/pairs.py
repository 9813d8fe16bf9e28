"""Weighted hinge losses of the pairs in a batch, ``ξ_ij = max(0, 1 − s⁺_i + s⁻_j)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bspauc_spark.errors import DivergedError

# Training that multiplies the mean pair loss (a loss below 1 counts as 1) by so much has diverged.
EXPLOSION = 10.0


def matched_pairs(positive: Tensor, negative: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """The mean of ``v_j u_j ξ_jj``: the j-th positive is paired with the j-th negative (Algorithm 2, line 5)."""
    return (v * u * torch.relu(1 - positive + negative)).mean()


def all_pairs(positive: Tensor, negative: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """The mean of ``v_i u_j ξ_ij`` over all pairs of the batch, in ``O(B log B)``."""
    loss: Tensor = _AllPairs.apply(positive, negative, v, u)  # type: ignore[no-untyped-call]
    return loss


class _AllPairs(torch.autograd.Function):
    """The sum is piecewise linear in the scores, so the gradient of a score counts the active pairs of that score."""

    @staticmethod
    def forward(ctx: Any, positive: Tensor, negative: Tensor, v: Tensor, u: Tensor) -> Tensor:
        # In float64 "s⁻ > s⁺ − 1" and "s⁺ < s⁻ + 1" agree on which pairs are active.
        s, v = positive.double(), v.double()
        r, u = negative.double(), u.double()
        pairs = max(1, len(s) * len(r))

        r_sorted, by_r = torch.sort(r)
        # Sums from the top down. With differences of sums from below, one very low score would wipe out all others.
        start = torch.searchsorted(r_sorted, s - 1, right=True)
        active = _suffix(u[by_r])[start]
        loss = (v * ((1 - s) * active + _suffix(u[by_r] * r_sorted)[start])).sum() / pairs

        s_sorted, by_s = torch.sort(s)
        below = _prefix(v[by_s])[torch.searchsorted(s_sorted, r + 1)]
        ctx.save_for_backward((-v * active / pairs).to(positive.dtype), (u * below / pairs).to(negative.dtype))
        return loss.to(positive.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_positive, by_negative = ctx.saved_tensors
        return gradients[0] * by_positive, gradients[0] * by_negative, None, None


def _suffix(values: Tensor) -> Tensor:
    return _prefix(values.flip(0)).flip(0)


def _prefix(values: Tensor) -> Tensor:
    return torch.cat([values.new_zeros(1), torch.cumsum(values, 0)])


def member_losses(pairing: str, positive: Tensor, negative: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """The mean loss of each member, whose scores and weights are the columns, over the pairs that it learns from."""
    count = positive.shape[1]
    columns = (part.T.contiguous() for part in (positive, negative, v, u))
    losses = torch.stack([PAIRINGS[pairing](*one) for one in zip(*columns, strict=True)])
    if count == 1:
        return losses
    v, u = (v > 0).float(), (u > 0).float()
    # Of all pairs of the batch, the share that a member learns from.
    share = (v * u).mean(dim=0) if pairing == "matched" else v.mean(dim=0) * u.mean(dim=0)
    return losses / share.clamp_min(1e-12)


def refuse_explosion(start: float, end: float) -> None:
    """Raise ``DivergedError`` if training raised the mean pair loss from ``start`` to a far larger ``end``."""
    if not end <= EXPLOSION * max(1.0, start):
        raise DivergedError(
            f"Training raised the mean pair loss from {start:.3g} to {end:.3g}. Lower learningRate, or scale the "
            "features to [-1, 1]."
        )


PAIRINGS = {"matched": matched_pairs, "all": all_pairs}
