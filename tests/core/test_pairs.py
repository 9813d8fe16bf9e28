"""Pair losses: the O(B log B) sum against the whole B × B table, its gradients against autograd and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bspauc_spark.theta.pairs import PAIRINGS, all_pairs, matched_pairs


def table_loss(positive: Tensor, negative: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """Every pair of the batch, one by one, in float64."""
    margins = 1 - positive.double()[:, None] + negative.double()[None, :]
    return (v.double()[:, None] * u.double()[None, :] * torch.relu(margins)).mean()


def loss_and_gradients(loss: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    positive, negative = (t.detach().clone().requires_grad_() for t in tensors[:2])
    value = loss(positive, negative, *tensors[2:])
    return value.detach(), *torch.autograd.grad(value, (positive, negative))


def assert_equals_the_table(s: Any, r: Any, v: Any = None, u: Any = None) -> None:
    s, r = (torch.as_tensor(np.asarray(x, dtype=np.float32)) for x in (s, r))
    v, u = (torch.ones(len(x)) if w is None else torch.as_tensor(w) for x, w in ((s, v), (r, u)))
    expected = loss_and_gradients(table_loss, s, r, v, u)
    for found, wanted in zip(loss_and_gradients(all_pairs, s, r, v, u), expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted.float(), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (9, 1), (16, 16), (33, 20), (256, 256)])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_all_pairs_equal_the_table_with_weights(n: int, m: int, spread: float) -> None:
    rng = np.random.default_rng(n + 100 * m)
    s, r = rng.normal(0, spread, n), rng.normal(0, spread, m)
    assert_equals_the_table(s, r)
    assert_equals_the_table(s, r, rng.random(n, dtype=np.float32), rng.random(m, dtype=np.float32))


@pytest.mark.parametrize("seed", range(20))
def test_ties_and_pairs_exactly_on_the_hinge_equal_the_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, r = rng.integers(-4, 5, 40) / 2, rng.integers(-4, 5, 25) / 2
    assert_equals_the_table(s, r, rng.integers(0, 3, 40).astype(np.float32) / 2, rng.random(25, dtype=np.float32))


def test_weights_of_zero_leave_rows_out() -> None:
    rng = np.random.default_rng(0)
    s, r = (torch.as_tensor(rng.normal(size=k), dtype=torch.float32) for k in (12, 8))
    v, u = torch.ones(12), torch.ones(8)
    v[4:] = 0
    u[5:] = 0
    loss, by_s, by_r = loss_and_gradients(all_pairs, s, r, v, u)
    kept = all_pairs(s[:4], r[:5], torch.ones(4), torch.ones(5))
    torch.testing.assert_close(loss, kept * (4 * 5) / (12 * 8))
    assert not by_s[4:].any()
    assert not by_r[5:].any()


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e12])
def test_huge_scores_equal_the_table(scale: float) -> None:
    rng = np.random.default_rng(1)
    assert_equals_the_table(rng.normal(0, scale, 50), rng.normal(0, scale, 60))


def test_one_huge_score_does_not_spoil_the_gradients_of_the_others() -> None:
    s, r = torch.tensor([0.0, 0.3, 1e30]), torch.tensor([-1e30, 0.5, 1.0, -0.9])
    v, u = torch.tensor([1.0, 0.5, 1.0]), torch.tensor([1.0, 1.0, 0.25, 1.0])
    found, expected = loss_and_gradients(all_pairs, s, r, v, u), loss_and_gradients(table_loss, s, r, v, u)
    for a, b in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(a, b)


def test_separated_classes_have_no_loss_and_no_gradient() -> None:
    loss, by_s, by_r = loss_and_gradients(
        all_pairs, torch.tensor([2.0, 3.0]), torch.tensor([1.0, -1.0]), torch.ones(2), torch.ones(2)
    )
    assert loss == 0
    assert not by_s.any()
    assert not by_r.any()


@pytest.mark.parametrize("loss", [all_pairs, matched_pairs], ids=["all", "matched"])
def test_gradients_equal_finite_differences(loss: Any) -> None:
    rng = np.random.default_rng(3)
    s, r, v, u = (torch.as_tensor(x) for x in (rng.normal(0, 2, 15), rng.normal(0, 2, 15), *rng.random((2, 15))))
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, v, u), (s.requires_grad_(), r.requires_grad_()))


def test_the_gradient_is_scaled_by_what_follows_the_loss() -> None:
    s, r = torch.zeros(3, requires_grad=True), torch.zeros(2)
    (5 * all_pairs(s, r, torch.ones(3), torch.ones(2))).backward()
    torch.testing.assert_close(s.grad, torch.full((3,), -5 / 3))


def test_matched_pairs_are_the_mean_over_j() -> None:
    s, r = torch.tensor([2.0, 0.5, -1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 0.5])
    v, u = torch.tensor([1.0, 1.0, 0.5, 1.0]), torch.tensor([1.0, 0.4, 1.0, 0.0])
    # ξ = 0, 0.5, 3, 1.5 and v·u = 1, 0.4, 0.5, 0
    loss, by_s, by_r = loss_and_gradients(matched_pairs, s, r, v, u)
    assert loss.item() == pytest.approx((0.4 * 0.5 + 0.5 * 3) / 4)
    torch.testing.assert_close(by_s, torch.tensor([0.0, -0.1, -0.125, 0.0]))
    torch.testing.assert_close(by_r, -by_s)


def test_the_two_pairings_agree_where_there_is_one_pair() -> None:
    values = [torch.tensor([x]) for x in (0.2, 0.7, 0.5, 1.0)]
    assert set(PAIRINGS) == {"all", "matched"}
    assert all_pairs(*values).item() == pytest.approx(matched_pairs(*values).item())
