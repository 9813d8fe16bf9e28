"""Steps of a lazy table against whole steps, literally taken, and against torch's own optimizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bspauc_spark.rows.rows import SparseBatch, SparseRows
from bspauc_spark.theta.first_layer import FirstLayer
from bspauc_spark.theta.lazy_layer import LazyLayer, average_decay
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.scoring import score_rows

FEATURES, WIDTH, EPSILON = 12, 3, 1e-3


def batch_of(rows: list[list[int]], rng: np.random.Generator) -> SparseBatch:
    lengths = [len(row) for row in rows]
    return SparseBatch(
        torch.tensor([name for row in rows for name in row], dtype=torch.int32),
        torch.from_numpy(rng.normal(size=sum(lengths)).astype(np.float32)),
        torch.tensor(np.cumsum([0, *lengths])[:-1], dtype=torch.int32),
    )


def draw(rng: np.random.Generator) -> SparseBatch:
    """Five rows of few features, of which some are rare, and one that never occurs; some rows are empty."""
    odds = np.array([1 / (1 + i) ** 2 for i in range(FEATURES - 1)] + [0.0])
    names = [rng.choice(FEATURES, rng.integers(0, 4), replace=False, p=odds / odds.sum()).tolist() for _ in range(5)]
    return batch_of(names, rng)


def dense(batch: SparseBatch) -> torch.Tensor:
    table = torch.zeros(len(batch), FEATURES, dtype=torch.float64)
    ends = [*batch.offsets.tolist()[1:], len(batch.indices)]
    for row, (start, end) in enumerate(zip(batch.offsets.tolist(), ends, strict=True)):
        for place in range(start, end):
            table[row, batch.indices[place]] += batch.values[place].double()
    return table


def layers(seed: int = 0) -> tuple[FirstLayer, FirstLayer]:
    first, average = FirstLayer(FEATURES, WIDTH), FirstLayer(FEATURES, WIDTH)
    weight = torch.randn(FEATURES, WIDTH, generator=torch.Generator().manual_seed(seed))
    for layer in (first, average):
        layer.weight.data.copy_(weight)
    return first, average


class Literal:
    """Every row in every step, in float64."""

    def __init__(self, weight: torch.Tensor, optimizer: str, tau: float, averaging: float) -> None:
        self.w = weight.detach().double().clone()
        self.a = self.w.clone()
        self.m, self.v, self.n = torch.zeros_like(self.w), torch.zeros_like(self.w), torch.zeros(FEATURES, 1).double()
        self.optimizer, self.tau, self.averaging, self.steps = optimizer, tau, averaging, 0

    def step(self, x: torch.Tensor, due: torch.Tensor, rate: float) -> None:
        gradient, named = x.T @ due, (x != 0).any(dim=0)
        if self.optimizer != "adam":
            self.w *= 1 - rate * self.tau
        if self.optimizer == "sgd":
            self.w -= rate * gradient
        else:
            if self.optimizer == "adam":
                gradient = gradient + self.tau * self.w
            self.n[named] += 1
            self.m[named] = 0.9 * self.m[named] + 0.1 * gradient[named]
            self.v[named] = 0.999 * self.v[named] + 0.001 * gradient[named] ** 2
            first, second = self.m[named] / (1 - 0.9 ** self.n[named]), self.v[named] / (1 - 0.999 ** self.n[named])
            self.w[named] -= rate * first / (second.sqrt() + EPSILON)
        self.steps += 1
        decay = average_decay(self.averaging, self.steps)
        self.a = decay * self.a + (1 - decay) * self.w


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("averaging", [0.0, 0.9, 1e-12, 0.99999])
@pytest.mark.parametrize("rate_tau", [(0.05, 0.0), (0.05, 2.0), (0.5, 2.0), (0.5, 3.0)], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_lazy_steps_are_whole_steps(optimizer: str, rate_tau: tuple[float, float], averaging: float) -> None:
    rate, tau = rate_tau
    rng = np.random.default_rng(3)
    first, average = layers()
    if averaging == 0:
        average = first
    table = LazyLayer(first, average, optimizer=optimizer, tau=tau, averaging=averaging, epsilon=EPSILON)
    literal = Literal(first.weight, optimizer, tau, averaging)
    for steps in (1, 40, 7):
        table.begin(rate, steps, literal.steps)
        for _ in range(steps):
            batch = table.multiply(draw(rng))
            assert batch.product is not None
            close(batch.product, dense(batch) @ literal.w)
            batch.product.grad = torch.from_numpy(rng.normal(size=(len(batch), WIDTH)).astype(np.float32))
            table.step(*table.gradient(batch))
            literal.step(dense(batch), batch.product.grad.double(), rate)
        table.settle()
        close(first.weight, literal.w)
        if averaging:
            close(average.weight, literal.a)


@pytest.mark.parametrize(
    ("rate", "tau", "averaging", "steps"), [(0.5, 0.1, 0.99, 1190), (0.5, 0.04, 0.999, 3000)], ids=str
)
def test_the_average_of_a_long_block_is_right_where_weights_decay_faster_than_it(
    rate: float, tau: float, averaging: float, steps: int
) -> None:
    rng = np.random.default_rng(5)
    first, average = layers()
    table = LazyLayer(first, average, optimizer="sgd", tau=tau, averaging=averaging, epsilon=EPSILON)
    literal = Literal(first.weight, "sgd", tau, averaging)
    table.begin(rate, steps, 0)
    for _ in range(steps):
        batch = table.multiply(draw(rng))
        assert batch.product is not None
        batch.product.grad = torch.from_numpy(rng.normal(size=(len(batch), WIDTH)).astype(np.float32))
        table.step(*table.gradient(batch))
        literal.step(dense(batch), batch.product.grad.double(), rate)
    table.settle()
    close(first.weight, literal.w)
    close(average.weight, literal.a)


def test_whole_steps_of_sgd_are_torchs() -> None:
    """The literal steps above are checked too."""
    rng = np.random.default_rng(0)
    weight = torch.nn.Parameter(torch.randn(FEATURES, WIDTH, dtype=torch.float64))
    literal = Literal(weight, "sgd", 0.3, 0.0)
    theirs = torch.optim.SGD([weight], lr=0.1, weight_decay=0.3)
    for _ in range(20):
        x, due = dense(draw(rng)), torch.from_numpy(rng.normal(size=(5, WIDTH)))
        weight.grad = x.T @ due
        theirs.step()
        literal.step(x, due, 0.1)
    close(literal.w, weight.detach())


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_where_every_row_is_named_the_steps_are_torchs(name: str, kind: type[torch.optim.Adam]) -> None:
    rng = np.random.default_rng(1)
    first, average = layers()
    weight = torch.nn.Parameter(first.weight.detach().double().clone())
    theirs = kind([weight], lr=0.02, weight_decay=0.4, eps=EPSILON)
    table = LazyLayer(first, average, optimizer=name, tau=0.4, averaging=0.9, epsilon=EPSILON)
    table.begin(0.02, 30, 0)
    for _ in range(30):
        batch = table.multiply(batch_of([list(range(FEATURES))] * 2, rng))
        assert batch.product is not None
        batch.product.grad = torch.from_numpy(rng.normal(size=(2, WIDTH)).astype(np.float32))
        weight.grad = dense(batch).T @ batch.product.grad.double()
        table.step(*table.gradient(batch))
        theirs.step()
    table.settle()
    close(first.weight, weight.detach())


def test_the_gradient_is_autograds() -> None:
    rng = np.random.default_rng(2)
    first, average = layers()
    table = LazyLayer(first, average, optimizer="sgd", tau=0.0, averaging=0.9, epsilon=EPSILON)
    table.begin(0.1, 1, 0)
    raw = draw(rng)
    batch = table.multiply(raw)
    with torch.enable_grad():
        first(batch).square().sum().backward()
        own = first.bias.grad
        assert own is not None
        assert first.weight.grad is None
        named, gradient = table.gradient(batch)
        first.bias.grad = None
        first(raw).square().sum().backward()
    assert first.weight.grad is not None
    assert first.bias.grad is not None
    torch.testing.assert_close(own, first.bias.grad)
    assert named.tolist() == sorted(set(raw.indices.tolist()))
    torch.testing.assert_close(gradient, first.weight.grad[named.long()])


def test_a_step_touches_no_row_that_its_batch_does_not_name() -> None:
    rng = np.random.default_rng(4)
    first, average = layers()
    table = LazyLayer(first, average, optimizer="adamw", tau=0.4, averaging=0.9, epsilon=EPSILON)
    before = [t.detach().clone() for t in (first.weight, average.weight, *table.moments.values())]
    table.begin(0.1, 1, 0)
    batch = table.multiply(batch_of([[2, 5], [5]], rng))
    assert batch.product is not None
    batch.product.grad = torch.ones(2, WIDTH)
    table.step(*table.gradient(batch))
    after = [t.detach() for t in (first.weight, average.weight, *table.moments.values())]
    changed = [set(torch.nonzero((a != b).any(dim=1))[:, 0].tolist()) for a, b in zip(before, after, strict=True)]
    assert changed == [{2, 5}, set(), {2, 5}, {2, 5}, {2, 5}]


def test_features_outside_the_columns_count_for_nothing() -> None:
    rng = np.random.default_rng(6)
    columns = torch.tensor([1, 4, 9], dtype=torch.int32)
    network = NetworkSpec("mlp", 10_000_000, (4,)).build(torch.Generator().manual_seed(0), columns)
    assert network.first.weight.shape == (3, 4)
    names = np.array([0, 4, 9, 9_999_999, 1, 3], dtype=np.int32)
    values = rng.normal(size=6).astype(np.float32)
    pointers = np.array([0, 2, 4, 6, 6])
    scores = score_rows(network, SparseRows([(pointers, names, values)], 10_000_000))
    known = np.isin(names, columns)
    kept = np.concatenate([[0], np.cumsum(known)])[pointers]
    few = NetworkSpec("mlp", 10, (4,)).build()
    whole = torch.zeros(10, 4).index_copy(0, columns.long(), network.first.weight.detach())
    few.load_state_dict({**network.state_dict(), "first.weight": whole}, strict=False)
    expected = score_rows(few, SparseRows([(kept, names[known], values[known])], 10))
    np.testing.assert_array_equal(scores, expected)


def test_a_network_of_some_columns_has_a_plain_form_for_all_of_them() -> None:
    columns = torch.tensor([1, 4, 9], dtype=torch.int32)
    network = NetworkSpec("mlp", 11, (4,)).build(torch.Generator().manual_seed(0), columns)
    x = np.random.default_rng(0).normal(size=(6, 11)).astype(np.float32)
    with torch.no_grad():
        scores = network(torch.from_numpy(x))
        torch.testing.assert_close(network.to_sequential()(torch.from_numpy(x)), scores)
