"""The worker of network "table": its θ block is solved, also from few rows, and again after it was taken back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.errors import MalformedError
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows
from bspauc_spark.selection import Selection
from bspauc_spark.spark import plan
from bspauc_spark.theta.ridge import pair_scale, solve, sums
from bspauc_spark.theta.table import TableNetwork
from bspauc_spark.theta.worker import Worker
from bspauc_spark.theta.workers import make_worker
from tests.helpers.teams import workers


def worker(positives: int, negatives: int) -> Worker:
    """As a fit makes it of so many rows."""
    rng = np.random.default_rng(0)
    counts = {POSITIVES: positives, NEGATIVES: negatives}
    x = {kind: rng.normal(size=(count, 3)).astype(np.float32) for kind, count in counts.items()}
    x[POSITIVES][:, 0] += 1
    rows = {kind: DenseRows([matrix], 3) for kind, matrix in x.items()}
    estimator = BSPAUCClassifier()
    spec = plan.network(estimator, 3, lambda: rows, None, plan.folds(estimator, rows), counts)
    return make_worker(rows, spec, plan.settings(estimator, plan.decay(estimator, counts, False, 3)))


def keeping(own: Worker, share: float) -> Selection:
    """The easiest rows of either class."""
    scores = own.scores()
    tau, upsilon = (
        float(np.quantile(scores[kind], at, method=method))
        for kind, at, method in ((POSITIVES, 1 - share, "lower"), (NEGATIVES, share, "higher"))
    )
    return Selection(tau, 0.0, upsilon, 0.0, 1.0, 1.0, share, share, 1, True)


@pytest.mark.parametrize(
    ("positives", "negatives", "landmarks"),
    [(50, 30, 80), (600, 20, 520), (20, 600, 620), (1, 1, 2), (700, 900, 1000), (900, 300, 800), (2, 1500, 1000)],
)
def test_there_are_as_many_landmarks_as_rows_up_to_a_limit(positives: int, negatives: int, landmarks: int) -> None:
    own = worker(positives, negatives)
    network = own.theta.network
    assert isinstance(network, TableNetwork)
    assert len(np.unique(network.landmarks.numpy(), axis=0)) == len(network.landmarks) == landmarks
    own.pretrain()
    assert all(np.isfinite(scores).all() for scores in own.scores().values())


def test_a_selection_of_one_row_of_either_class_is_learned_from() -> None:
    own = worker(60, 90)
    own.pretrain()
    own.train(keeping(own, 1e-6))
    assert all(np.isfinite(array).all() for array in own.weights().values())


def test_without_rows_all_coefficients_are_0() -> None:
    assert not solve(torch.zeros(5, 5, dtype=torch.float64), (0.1, 3.0)).any()


def test_without_decay_columns_that_say_the_same_are_solved_as_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32) @ rng.normal(size=(3, 40)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=500) > 0).astype(np.float32)
    given = torch.from_numpy(x), torch.from_numpy(y), torch.ones(500), torch.zeros(500, dtype=torch.uint8)
    (found,) = solve(sums(*given, count=1)[0], (0.0,)).T.numpy()
    z = np.column_stack([x, np.ones(500)]).astype(np.float64)
    wanted = z @ np.linalg.lstsq(z, y, rcond=1e-6)[0]
    # Where the classes stand is decided later.
    np.testing.assert_allclose(z @ found, wanted - wanted.mean(), atol=1e-3)


def test_a_class_of_which_nothing_is_kept_is_scaled_as_a_whole() -> None:
    positive, negative = np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0])
    nothing, every = np.zeros(3), np.ones(3)
    assert pair_scale(positive, negative, nothing, np.ones(2)) == pair_scale(positive, negative, every, np.ones(2))


def test_a_block_that_was_taken_back_is_solved_again() -> None:
    own = workers(network="table", tau=-1.0)
    own.pretrain()
    selection = keeping(own, 0.6)
    before = own.weights()
    own.train(selection)
    first = own.weights()
    own.undo()
    undone = own.weights()
    assert all(np.array_equal(undone[name], before[name]) for name in before if name not in ("judged", "mixed"))
    own.train(selection)
    assert any(not np.array_equal(first[name], before[name]) for name in before)
    assert all(np.array_equal(own.weights()[name], first[name]) for name in first)


def test_a_state_with_landmarks_of_another_machine_is_gone_on_from() -> None:
    """Other types of CPU round differently."""
    own, other = (workers(network="table", tau=-1.0) for _ in range(2))
    own.pretrain()
    state = dict(own.state())
    state["average.landmarks"] = state["average.landmarks"] + np.float32(1e-6)
    other.load(state)
    selection = keeping(own, 0.6)
    for one in (own, other):
        one.train(selection)
    for kind, scores in own.scores().items():
        np.testing.assert_allclose(other.scores()[kind], scores, atol=1e-2)
    with pytest.raises(MalformedError, match=r"state\.average: widths are below 1e-06"):
        other.load({**state, "average.widths": state["average.widths"] * 0})


def test_wide_rows_get_layers_in_place_of_a_table() -> None:
    def kind(sparse: bool, width: int, network: str = "table") -> str:
        return plan.kind(BSPAUCClassifier(network=network), sparse, width)

    assert (kind(False, 2000), kind(False, 2001)) == ("table", "mlp")
    assert (kind(True, 1000), kind(True, 1001)) == ("table", "mlp")
    assert kind(False, 2001, "linear") == "linear"
