"""Members of a cross-fitted θ, against networks that are trained one by one on the rows outside their folds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from bspauc_spark import algorithm
from bspauc_spark.errors import DivergedError
from bspauc_spark.loop.guard import Guard
from bspauc_spark.results.history import Round
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.selection import Selection
from bspauc_spark.selection.pace import EveryRow, FractionPace
from bspauc_spark.theta.honest import keys_of
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.networks import QUANTILES, NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import compressed, dense
from tests.helpers.teams import SETTINGS

FORMS = {"dense": dense, "sparse": compressed}
MEMBERS, SEED = 3, 11


def data(rows: int = 400, wrong: float = 0.0, validation: bool = False, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    label = (x[:, 0] - x[:, 1] ** 2 > 0) ^ (rng.random(rows) < wrong)
    held = (np.arange(rows) % 4 == 0) & validation
    kinds = {POSITIVES: label & ~held, NEGATIVES: ~label & ~held}
    if validation:
        kinds |= {VALIDATION_POSITIVES: label & held, VALIDATION_NEGATIVES: ~label & held}
    return {kind: x[chosen] for kind, chosen in kinds.items()}


def spec(kind: str = "mlp") -> NetworkSpec:
    layers = (8, 6) if kind == "mlp" else ()
    return NetworkSpec(kind, 5, layers, 16 if kind == "kernel" else 0, 2.0, 0, MEMBERS, SEED)


def make(arrays: dict[str, np.ndarray], kind: str = "mlp", form: str = "dense", **settings: Any) -> Worker:
    return Worker(FORMS[form](arrays), spec(kind), TrainingSettings(**{**SETTINGS, **settings}))


def folds(x: np.ndarray) -> np.ndarray:
    return (keys_of(torch.from_numpy(x), SEED) % MEMBERS).astype(int)


def everything(worker: Worker) -> Selection:
    scores = worker.score()
    return Selection.everything(scores.positive, scores.negative)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pairing", ["all", "matched"])
@pytest.mark.parametrize("kind", ["mlp", "linear", "kernel"])
def test_steps_are_those_of_members_trained_alone_outside_their_folds(kind: str, pairing: str, form: str) -> None:
    arrays = data()
    worker = make(arrays, kind, form, pairing=pairing, optimizer="sgd", steps=4, averaging=0.0, tau=0.1)
    start = Members(spec(kind), columns=worker.theta.network.state_dict().get("members.0.first.columns"))
    start.load_state_dict(worker.theta.network.state_dict())
    drawn: list[np.ndarray] = []
    draw = worker._draw
    worker._draw = lambda kept, count: drawn.append(draw(kept, count)) or drawn[-1]  # type: ignore
    worker.descend(everything(worker))

    rate, tau = worker.settings.learning_rate, worker.settings.tau
    for number in range(MEMBERS):
        plain = start.member(number).to_sequential() if kind != "kernel" else None
        network = start.member(number)
        for p, q in zip(*drawn, strict=True):
            xp, xq = arrays[POSITIVES][p], arrays[NEGATIVES][q]
            a, b = folds(xp) != number, folds(xq) != number
            forward = network if plain is None else plain
            s, r = (forward(torch.from_numpy(x)) for x in (xp, xq))
            if pairing == "all":
                loss = torch.relu(1 - s[a][:, None] + r[b][None, :]).mean()
            else:
                loss = torch.relu(1 - s + r)[a & b].mean()
            parameters = list(forward.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                with torch.no_grad():
                    parameter.mul_(1 - rate * tau).sub_(gradient, alpha=rate)
        x = torch.from_numpy(np.concatenate([*arrays.values()]))
        with torch.no_grad():
            wanted = (network if plain is None else plain)(x)
            found = worker.theta.network.member(number)(x)  # type: ignore
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_member_does_not_depend_on_the_labels_of_its_fold(form: str) -> None:
    """Other labels inside a fold change every other member and not this one, as long as the same rows are drawn."""
    arrays = data()
    number = 1
    moved = {kind: x.copy() for kind, x in arrays.items()}
    inside = folds(arrays[POSITIVES]) == number
    # Rows of the fold that are drawn as positives now look quite different; those outside are as before.
    moved[POSITIVES][inside] += 100.0
    # Their folds must not change: the worker is told the folds of the old rows.
    workers = [make(arrays, form=form, optimizer="adamw"), make(moved, form=form, optimizer="adamw")]
    workers[1]._judges = workers[0]._judges
    for worker in workers:
        worker._weights = {kind: np.ones(len(x), np.float32) for kind, x in arrays.items()}
        worker._run(worker._weights, 12, 1.0)
    one, two = (worker.theta.network.state_dict() for worker in workers)
    same = {name: torch.equal(one[name], two[name]) for name in one}
    assert all(equal for name, equal in same.items() if name.startswith(f"members.{number}."))
    assert not any(equal for name, equal in same.items() if name.endswith("weight") and f".{number}." not in name[:10])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["mlp", "kernel"])
def test_honest_scores_are_those_of_the_member_outside_of_which_the_fold_lay(kind: str, form: str) -> None:
    arrays = data(validation=True)
    worker = make(arrays, kind, form)
    worker.pretrain()
    found = worker.scores()
    average = worker.theta.average
    assert isinstance(average, Members)
    x = np.concatenate([arrays[POSITIVES], arrays[NEGATIVES]])
    with torch.no_grad():
        raw = np.stack([average.member(k)(torch.from_numpy(x)).double().numpy() for k in range(MEMBERS)], axis=1)
    fold = folds(x)
    mixed = standardised(raw, fold)
    honest = mixed[np.arange(len(x)), fold]
    np.testing.assert_allclose(np.concatenate([found[POSITIVES], found[NEGATIVES]]), honest, rtol=5e-4, atol=5e-4)
    with torch.no_grad():
        every = average(torch.from_numpy(x))
    np.testing.assert_allclose(every, mixed.mean(axis=1), rtol=5e-4, atol=5e-4)
    with torch.no_grad():
        held = average(torch.from_numpy(arrays[VALIDATION_POSITIVES]))
    np.testing.assert_allclose(found[VALIDATION_POSITIVES], held, rtol=1e-5, atol=1e-6)


def standardised(raw: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Quantiles of each member's own fold become the mean of all members' quantiles."""
    least = 5 / np.bincount(fold).min()
    shares = np.unique(np.clip(QUANTILES, least, 1 - least))
    knots = np.stack([np.quantile(raw[fold == k, k], shares) for k in range(MEMBERS)])
    levels = knots.mean(axis=0)
    mixed = np.stack([np.interp(raw[:, k], knots[k], levels) for k in range(MEMBERS)], axis=1)
    slopes = (levels[-1] - levels[0]) / (knots[:, -1] - knots[:, 0])
    return mixed + slopes * (np.minimum(raw - knots[:, 0], 0) + np.maximum(raw - knots[:, -1], 0))


@pytest.mark.parametrize("form", FORMS)
def test_honest_scores_do_not_give_labels_away(form: str) -> None:
    """Labels are drawn at random, so no score ranks those that it did not learn from; the others are known by heart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5)).astype(np.float32)
    label = rng.random(600) < 0.3
    arrays = {POSITIVES: x[label], NEGATIVES: x[~label]}
    worker = make(arrays, form=form, optimizer="adamw", steps=400, learning_rate=0.02)
    worker.descend(everything(worker))
    error = np.sqrt((label.sum() + (~label).sum() + 1) / (12 * label.sum() * (~label).sum()))
    assert abs(auc_of(worker.scores()) - 0.5) < 3 * error
    network = worker.theta.average
    with torch.no_grad():
        learned = {kind: network(torch.from_numpy(one)).numpy() for kind, one in arrays.items()}
    assert auc_of(learned) > 0.7


def auc_of(scores: dict[str, np.ndarray]) -> float:
    both = np.concatenate([scores[POSITIVES], scores[NEGATIVES]])
    return float(roc_auc_score(np.arange(len(both)) < len(scores[POSITIVES]), both))


def test_the_block_reports_the_loss_on_learned_rows_and_the_objective_on_honest_ones() -> None:
    worker, tau = make(data(wrong=0.2), averaging=0.0), 0.001
    worker.pretrain()
    scores = worker.score()
    selection = FractionPace(0.8, 0.8, 1, nu=1.0).select(1, scores.positive, scores.negative, None)
    weights = {
        POSITIVES: selection.positive_weights(worker.scores()[POSITIVES]),
        NEGATIVES: selection.negative_weights(worker.scores()[NEGATIVES]),
    }

    def learned() -> float:
        return float(np.mean([loss(worker, data(wrong=0.2), weights, k) for k in range(MEMBERS)]))

    def honest() -> float:
        s, r = (worker.scores()[kind].astype(float) for kind in (POSITIVES, NEGATIVES))
        hinge = np.maximum(0, 1 - s[:, None] + r[None, :])
        return float((weights[POSITIVES][:, None] * weights[NEGATIVES] * hinge).mean())

    before = learned(), honest()
    block = Guard(worker, [], tau).train(selection)
    after = learned(), honest()
    row = Round.of(1, selection, block, worker.score(), solve_seconds=0.0)
    assert row.block_before - tau * block.before.penalty == pytest.approx(before[0], rel=1e-5)
    assert row.block_after - tau * block.after.penalty == pytest.approx(after[0], rel=1e-5)
    change = row.objective_after - row.objective_before
    assert change == pytest.approx(after[1] - before[1] + tau * (block.after.penalty - block.before.penalty), abs=1e-6)


def loss(worker: Worker, arrays: dict[str, np.ndarray], weights: dict[str, np.ndarray], number: int) -> float:
    """Of a member, before it is standardised, over all pairs that it learns from."""
    network = worker.theta.average
    assert isinstance(network, Members)
    with torch.no_grad():
        s, r = (network.member(number)(torch.from_numpy(arrays[k])).double().numpy() for k in (POSITIVES, NEGATIVES))
    v, u = (weights[kind] * (folds(arrays[kind]) != number) for kind in (POSITIVES, NEGATIVES))
    hinge = np.maximum(0, 1 - s[:, None] + r[None, :])
    return float((v[:, None] * u * hinge).sum() / (v.sum() * u.sum()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_state_brings_back_the_same_bits(optimizer: str, form: str) -> None:
    worker = make(data(wrong=0.1), form=form, optimizer=optimizer)
    worker.pretrain()
    selection = everything(worker)
    state = worker.state()
    worker.train(selection)
    wanted = worker.state()
    other = make(data(wrong=0.1), form=form, optimizer=optimizer, seed=0)
    other.load(state)
    other.train(selection)
    found = other.state()
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    worker.undo()
    undone = worker.state()
    assert all(np.array_equal(undone[name], state[name]) for name in state if name != "generator")


def test_a_member_without_any_spread_is_named() -> None:
    worker = make(data())
    with torch.no_grad():
        for parameter in worker.theta.average.networks()[2].parameters():  # type: ignore
            parameter.zero_()
    with pytest.raises(DivergedError, match="member 2 of 3 gives the same score to all rows"):
        worker.scores()


def test_members_that_all_know_nothing_yet_score_zero() -> None:
    worker = make(data(), "kernel")
    assert not np.concatenate([*worker.scores().values()]).any()


def test_not_self_paced_members_are_the_ensemble_of_all_rows() -> None:
    worker = make(data(wrong=0.1))
    outcome = algorithm.fit(worker, EveryRow(), 3, tau=0.0)
    assert [row.positive_fraction for row in outcome.history] == [1.0] * 3
    x = data()[POSITIVES]
    assert stats.spearmanr(worker.theta.average(torch.from_numpy(x)).detach(), x[:, 0] - x[:, 1] ** 2)[0] > 0.5
