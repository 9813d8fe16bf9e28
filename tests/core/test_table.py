"""The network for tables: its steps, its scores and its files against plain torch, one network or members."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Rows, SparseRows
from bspauc_spark.selection import Selection
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.scoring import score_rows
from bspauc_spark.theta.table import Dropout, rate_at
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import compressed, dense
from tests.helpers.teams import SETTINGS

EVERYTHING = Selection(-1e30, 1.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 0, True)
ALL_STEPS = 100


def data(rows: int = 500, seed: int = 1) -> dict[str, np.ndarray]:
    """Numbers, a flag, a constant column, and gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    x[:, 1], x[:, 2], x[:, 3] = np.exp(3 * x[:, 1]), x[:, 2] > 1, 4.0
    label = x[:, 0] + np.log(x[:, 1]) / 3 + x[:, 2] > 0.7
    x[rng.random(rows) < 0.2, 4] = np.nan
    return {POSITIVES: x[label], NEGATIVES: x[~label]}


def spec(members: int = 3, features: int = 6) -> NetworkSpec:
    return NetworkSpec("table", features, (16, 8), members=members, fold_seed=3, inputs="auto", gaps=True)


def make(members: int = 3, rows: dict[str, Rows] | None = None, **settings: Any) -> Worker:
    wanted = {**SETTINGS, "optimizer": "adamw", "all_steps": ALL_STEPS, **settings}
    given = dense(data()) if rows is None else rows
    features = given[POSITIVES].num_features
    return Worker(given, spec(members, features), TrainingSettings(**wanted))


def every_row() -> np.ndarray:
    return np.concatenate([*data().values()])


@pytest.fixture(scope="module")
def trained() -> dict[int, Worker]:
    workers = {members: make(members) for members in (0, 3)}
    for worker in workers.values():
        worker.pretrain()
        worker.train(EVERYTHING)
    return workers


def by_hand(member: LayeredNetwork, inputs: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Waves and layers, written out."""
    own = member.embedding
    assert own is not None
    count = own.bias.shape[0]
    quantiles = torch.distributions.HalfNormal(0.15).icdf((torch.arange(8) + 0.5) / 8)
    columns = [inputs]
    for number in range(count):
        x = inputs[:, count + number, None]
        angles = 2 * math.pi * x * quantiles
        waves = torch.cat([angles.cos(), angles.sin()], 1)
        columns.append(waves @ own.weight[number] + own.bias[number])
    hidden = torch.cat(columns, 1) @ member.first.weight + member.first.bias
    for number, layer in enumerate(member.linears()):
        hidden = torch.relu(hidden)
        if kept is not None:
            hidden = hidden * (kept[:, :16] if number == 0 else kept[:, 16:])
        hidden = hidden @ layer.weight.T + layer.bias
    return hidden[:, 0]


def test_members_in_one_pass_are_each_one_by_hand_with_its_own_dropout(trained: dict[int, Worker]) -> None:
    network = trained[3].theta.network
    assert isinstance(network, Members)
    x = torch.from_numpy(every_row()[:50])
    kept = Dropout(5, 3, 24).kept(7, 50, np.arange(50))
    inputs = network.prepare(x)
    assert isinstance(inputs, torch.Tensor)
    for factors in (None, kept):
        found = network.each(x, factors)
        for number, member in enumerate(network.networks()):
            assert isinstance(member, LayeredNetwork)
            wanted = by_hand(member, inputs, None if factors is None else factors[:, number])
            torch.testing.assert_close(found[:, number], wanted, rtol=1e-4, atol=1e-4)
            alone = member(x) if factors is None else member(x, factors[:, number])
            torch.testing.assert_close(alone, wanted, rtol=1e-4, atol=1e-4)


def test_a_step_in_mixed_precision_is_near_the_exact_one() -> None:
    moved = []
    for mixed in (False, True):
        worker = make(pretrain_steps=0, steps=1, mixed_precision=mixed, optimizer="sgd", learning_rate=0.1)
        before = worker.state()
        worker.descend(EVERYTHING)
        after = worker.state()
        assert all(after[name].dtype == np.float32 for name in after if name.startswith("network."))
        moved.append({name: after[name] - before[name] for name in before if name.startswith("network.members.")})
    missed = {name: np.linalg.norm(moved[1][name] - exact) for name, exact in moved[0].items()}
    # The last bias moves by rounding only: a loss of pairs leaves it free.
    assert all(missed[name] <= 0.2 * max(np.linalg.norm(exact), 1e-3) for name, exact in moved[0].items())
    assert any(missed.values())


@pytest.mark.parametrize("members", [0, 3])
def test_scoring_passes_and_the_plain_form_give_the_same_function(members: int, trained: dict[int, Worker]) -> None:
    network, x = trained[members].theta.average, every_row()
    with torch.no_grad():
        wanted = network(torch.from_numpy(x)).numpy()
        plain = network.to_sequential()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(plain, wanted, rtol=1e-4, atol=1e-5)
    # Embeddings are looked up between two points of a table.
    np.testing.assert_allclose(score_rows(network, dense({"rows": x})["rows"]), wanted, atol=1e-4 * wanted.std())


@pytest.mark.parametrize("form", [dense, compressed])
def test_a_row_has_the_same_bits_wherever_it_stands(form: Any, trained: dict[int, Worker]) -> None:
    x = np.concatenate([every_row()] * 4)[: CHUNK_ROWS + 300]
    network = trained[3].theta.average
    wanted = score_rows(network, dense({"rows": x})["rows"])
    order = np.random.default_rng(0).permutation(len(x))
    assert np.array_equal(score_rows(network, form({"rows": x})["rows"], threads=2), wanted)
    assert np.array_equal(score_rows(network, form({"rows": x[order]})["rows"]), wanted[order])
    assert np.array_equal(score_rows(network, form({"rows": x[5:9]})["rows"]), wanted[5:9])


def test_units_that_drop_out_depend_on_seed_step_member_and_place_alone() -> None:
    dropout = Dropout(5, 3, 24)
    whole = dropout.kept(7, 40, np.arange(40))
    assert torch.equal(dropout.kept(7, 40, np.array([3, 30])), whole[[3, 30]])
    assert not torch.equal(dropout.kept(8, 40, np.arange(40)), whole)
    assert not torch.equal(Dropout(6, 3, 24).kept(7, 40, np.arange(40)), whole)
    assert not torch.equal(whole[:, 0], whole[:, 1])
    many = Dropout(5, 2, 100).kept(0, 1000, np.arange(1000))
    assert float((many == 0).float().mean()) == pytest.approx(0.1, abs=0.005)
    # What remains makes up for it.
    assert float(many.mean()) == pytest.approx(1.0, abs=0.005)


def test_the_learning_rate_is_flat_and_then_half_a_cosine() -> None:
    found = [rate_at(step, 200) for step in range(0, 201, 25)]
    wanted = [1.0] * 5 + [(1 + math.cos(math.pi * k / 4)) / 2 for k in (1, 2, 3, 4)]
    assert found == pytest.approx(wanted)
    assert rate_at(500, 200) == 0.0


def test_every_step_has_the_rate_of_its_place_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make(0)
    seen: list[float] = []
    step = worker.theta.optimizer.step
    rate_of = worker.theta.optimizer.param_groups[0]
    monkeypatch.setattr(worker.theta.optimizer, "step", lambda: seen.append(rate_of["lr"]) or step())
    worker.pretrain()
    for factor in (1.0, 1.0, 0.5):
        worker.descend(EVERYTHING, factor)
    rates = [worker.settings.learning_rate * rate_at(step, ALL_STEPS) for step in range(80)]
    assert seen == pytest.approx([*rates[:60], *(0.5 * rate for rate in rates[60:])])


@pytest.mark.parametrize("form", ["dense", "compressed", "wide"])
def test_a_state_brings_back_the_same_bits(form: str) -> None:
    def worker(seed: int = 2) -> Worker:
        rows = wide() if form == "wide" else {"dense": dense, "compressed": compressed}[form](data())
        return make(rows=rows, seed=seed)

    one = worker()
    one.pretrain()
    one.train(EVERYTHING)
    state = one.state()
    one.train(EVERYTHING)
    wanted = one.state()
    other = worker()
    other.load(state)
    other.train(EVERYTHING)
    found = other.state()
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    one.undo()
    undone = one.state()
    assert all(np.array_equal(undone[name], state[name]) for name in state if name != "generator")
    assert sum(".inputs." in name for name in state) == (2 if form == "wide" else 9)


def test_sparse_rows_of_few_columns_train_as_dense_ones_do() -> None:
    states = []
    for form in (dense, compressed):
        worker = make(rows=form(data()))
        worker.pretrain()
        worker.train(EVERYTHING)
        states.append(worker.state())
    one, other = states
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def wide(width: int = 1400) -> dict[str, Rows]:
    """Rows with a few of many columns, and one column of large numbers."""
    rng = np.random.default_rng(4)
    found: dict[str, Rows] = {}
    for kind, rows, first in ((POSITIVES, 120, 0), (NEGATIVES, 300, 100)):
        columns = np.stack([np.sort(rng.choice(np.arange(1, 200), 5, replace=False)) + first for _ in range(rows)])
        columns = np.concatenate([np.zeros((rows, 1)), columns], 1).astype(np.int32)
        values = np.ones((rows, 6), dtype=np.float32)
        values[:, 0] = rng.normal(1e5, 1e4, rows)
        found[kind] = SparseRows([(np.arange(0, 6 * rows + 1, 6), columns.ravel(), values.ravel())], width)
    return found


def test_wide_sparse_rows_keep_the_lazy_layer_and_have_no_embedding() -> None:
    rows = wide()
    worker = make(rows=rows, steps=60)
    worker.pretrain()
    worker.train(EVERYTHING)
    assert len(worker.theta.lazy) == 3
    average = worker.theta.average
    assert isinstance(average, Members)
    assert not any("embedding" in name for name in average.state_dict())
    scores = worker.scores()
    assert (scores[POSITIVES][:, None] > scores[NEGATIVES][None]).mean() > 0.9
    matrix = np.zeros((120, 1400), dtype=np.float32)
    pointers, columns, values = rows[POSITIVES].parts[0]  # type: ignore[attr-defined]
    matrix[np.repeat(np.arange(120), np.diff(pointers)), columns] = values
    with torch.no_grad():
        plain = average.to_sequential()(torch.from_numpy(matrix)).numpy()
    np.testing.assert_allclose(score_rows(average, rows[POSITIVES]), plain, rtol=1e-4, atol=1e-4)


def test_a_copy_shares_the_inputs_of_its_own_members_alone(trained: dict[int, Worker]) -> None:
    network = trained[3].theta.average
    other = copy.deepcopy(network)
    assert isinstance(other, Members)
    own = dict(other.named_modules())["inputs"]
    assert own is not dict(network.named_modules())["inputs"]
    assert all(member._inputs[0] is own for member in other.networks())
    assert sum(name.startswith("inputs.") for name in other.state_dict()) == 9
    assert sum("inputs" in name for name in other.state_dict()) == 9
