"""The closed forms, their alternation and calibration against the theorem, brute force and scipy."""

import json
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bspauc_spark.errors import BSPAUCError, BSPAUCWarning, CollapseError, InvalidPaceError, MalformedError
from bspauc_spark.selection import Selection, calibrate, solve, update_u, update_v
from bspauc_spark.selection.alternation import Problem, alternate
from bspauc_spark.selection.calibration import Calibration, _search, calibrate_classes, calibrate_fraction
from bspauc_spark.selection.solution import solve_again
from bspauc_spark.statistics import ClassScores

KINDS = ["generic", "tied", "all zero loss", "all kept", "none kept", "mu is zero", "sizes differ", "with a lead"]
PROBLEMS_PER_KIND = 150


@dataclass
class Case:
    """A small problem and its hinges, easiest rows first on both sides."""

    s_pos: np.ndarray
    s_neg: np.ndarray
    lam: float
    mu: float
    lead: float = 0.0

    def __post_init__(self):
        self.s_pos = -np.sort(-self.s_pos.astype(np.float32))
        self.s_neg = np.sort(self.s_neg.astype(np.float32))
        self.pos, self.neg = ClassScores.from_array(self.s_pos), ClassScores.from_array(self.s_neg)
        self.n, self.m = len(self.s_pos), len(self.s_neg)
        self.xi = np.maximum(0.0, 1.0 - self.s_pos.astype(float)[:, None] + self.s_neg.astype(float))

    def v(self, V):
        return np.clip(V * self.n - np.arange(self.n), 0.0, 1.0)

    def u(self, U):
        return np.clip(U * self.m - np.arange(self.m), 0.0, 1.0)

    def K(self, v, u):
        V, U = v.mean(), u.mean()
        return v @ self.xi @ u / (self.n * self.m) - self.lam * (V + U) + self.mu * (V - U - self.lead) ** 2

    def blocks(self, fraction):
        """(update, losses, the fraction that μ pulls to, K of this class's weights) for v and for u."""
        u, v = self.u(fraction), self.v(fraction)
        args = (self.pos, self.neg, fraction, self.lam, self.mu, self.lead)
        yield update_v(*args), self.xi @ u / self.m, u.mean() + self.lead, lambda weights: self.K(weights, u)
        yield update_u(*args), v @ self.xi / self.n, v.mean() - self.lead, lambda weights: self.K(v, weights)


def case(kind: str, seed: int) -> tuple[Case, float]:
    """A problem of this kind and a fraction that the fixed class keeps."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    n = m = int(rng.integers(1, 25))
    if kind == "sizes differ":
        n, m = (int(size) for size in rng.permutation([rng.integers(1, 6), rng.integers(20, 60)]))
    s_pos, s_neg = rng.normal(rng.uniform(0, 2), 1, n), rng.normal(0, 1, m)
    lam, mu = 10 ** rng.uniform(-2, 0.3), 10 ** rng.uniform(-2, 1.5)
    if kind == "tied":
        s_pos, s_neg = np.round(s_pos), np.round(s_neg)
    if kind == "all zero loss":
        s_pos = s_pos - s_pos.min() + s_neg.max() + 1.01
    if kind == "all kept":
        lam = 20.0
    if kind == "none kept":
        s_pos, lam, mu = s_pos - 3.0, 0.01, 0.01 * rng.uniform(0, 1)
    if kind == "mu is zero":
        mu = 0.0
    fraction = [0.0, 1.0, rng.integers(0, m + 1) / m, rng.uniform()][seed % 4]
    lead = rng.uniform(-1.2, 1.2) if kind == "with a lead" else 0.0
    return Case(s_pos, s_neg, lam, mu, lead), float(fraction)


def theorem(losses, other_fraction, lam, mu) -> float:
    """The paper's closed form, line by line; returns the mean of the weights."""
    size = len(losses)
    weights = np.zeros(size)
    for p in range(1, size + 1):
        loss = losses[p - 1]
        if loss < lam - 2 * mu * (p / size - other_fraction):
            weights[p - 1] = 1.0
            continue
        if mu > 0 and loss <= lam - 2 * mu * ((p - 1) / size - other_fraction):
            weights[p - 1] = size * (other_fraction - (loss - lam) / (2 * mu) - (p - 1) / size)
        break
    return float(weights.mean())


def breakpoints(losses, other_fraction, lam, mu) -> np.ndarray:
    """Every fraction at which K, quadratic between whole ranks, can have its minimum."""
    size = len(losses)
    ranks = np.arange(size)
    inside = other_fraction - (losses - lam) / (2 * mu) if mu > 0 else ranks / size
    return np.concatenate([np.clip(inside, ranks / size, (ranks + 1) / size), np.arange(size + 1) / size])


def weights_of(fraction, size):
    return np.clip(fraction * size - np.arange(size), 0.0, 1.0)


def each_case(kind):
    return (case(kind, seed) for seed in range(PROBLEMS_PER_KIND))


def spread(seed, kind="generic"):
    rng = np.random.default_rng(seed)
    if kind == "trained":
        return rng.normal(1.5, 1, 300), rng.normal(0, 1, 900)
    if kind == "untrained":
        return rng.normal(0, 0.02, 300), rng.normal(0, 0.02, 900)
    if kind == "separable":
        return rng.normal(6, 1, 300), rng.normal(0, 1, 900)
    if kind == "noisy":
        return (
            np.concatenate([rng.normal(2, 1, 240), rng.normal(-2, 1, 60)]),
            np.concatenate([rng.normal(-2, 1, 800), rng.normal(2, 1, 100)]),
        )
    return rng.normal(1, 1, 120), rng.normal(0, 1, 260)


def scores_of(seed, kind="generic"):
    return tuple(ClassScores.from_array(scores) for scores in spread(seed, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_updates_equal_the_theorem(kind):
    for problem, fraction in each_case(kind):
        for updated, losses, other, _ in problem.blocks(fraction):
            assert updated == pytest.approx(theorem(losses, other, problem.lam, problem.mu), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_equal_the_best_breakpoint(kind):
    for problem, fraction in each_case(kind):
        for updated, losses, other, K in problem.blocks(fraction):
            candidates = breakpoints(losses, other, problem.lam, problem.mu)
            values = np.array([K(weights_of(candidate, len(losses))) for candidate in candidates])
            assert K(weights_of(updated, len(losses))) <= values.min() + 1e-12
            if problem.mu > 0:  # strictly convex in the kept fraction, so the minimiser is unique
                best = candidates[values <= values.min() + 1e-15]
                assert np.abs(best - updated).min() <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_global_minima_over_all_weights(kind):
    for seed in range(0, PROBLEMS_PER_KIND, 10):
        problem, fraction = case(kind, seed)
        for updated, losses, other, K in problem.blocks(fraction):
            size = len(losses)

            def gradient(weights, losses=losses, other=other, size=size, problem=problem):
                return (losses - problem.lam + 2 * problem.mu * (weights.mean() - other)) / size

            found = minimize(
                K,
                np.full(size, 0.5),
                jac=gradient,
                method="L-BFGS-B",
                bounds=[(0, 1)] * size,
                options={"ftol": 1e-15, "gtol": 1e-12, "maxiter": 2000},
            )
            assert K(weights_of(updated, size)) == pytest.approx(found.fun, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accelerate", [True, False])
def test_the_alternation_ends_block_optimal(kind, accelerate):
    for problem, _ in each_case(kind):
        *_, end = alternate(
            Problem.of(problem.pos, problem.neg, problem.lam, problem.mu, problem.lead),
            accelerate=accelerate,
            max_updates=20_000,
        )
        assert end.converged
        losses_v, losses_u = (
            problem.xi @ problem.u(end.U) / problem.m,
            problem.v(end.V) @ problem.xi / problem.n,
        )
        assert abs(theorem(losses_v, end.U + problem.lead, problem.lam, problem.mu) - end.V) <= 1e-9
        assert abs(theorem(losses_u, end.V - problem.lead, problem.lam, problem.mu) - end.U) <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accelerate", [True, False])
def test_the_objective_never_increases(kind, accelerate):
    for problem, fraction in each_case(kind):
        points = alternate(
            Problem.of(problem.pos, problem.neg, problem.lam, problem.mu, problem.lead),
            U=fraction,
            accelerate=accelerate,
        )
        trace = [problem.K(problem.v(point.V), problem.u(point.U)) for point in points]
        assert np.all(np.diff(trace) <= 1e-13)


def test_acceleration_jumps_are_in_the_trace_and_lower_the_objective():
    problem = Case(*spread(0), lam=0.05, mu=1000.0)
    points = list(alternate(Problem.of(problem.pos, problem.neg, problem.lam, problem.mu)))
    trace = [problem.K(problem.v(point.V), problem.u(point.U)) for point in points]
    assert max(np.diff([point.updates for point in points])) > 10
    assert np.all(np.diff(trace) <= 1e-13)


@pytest.mark.parametrize("lam", [0.05, 0.3])
@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("kind", ["trained", "untrained", "noisy"])
def test_slow_problems_need_few_updates(kind, mu, lam):
    *_, end = alternate(Problem.of(*scores_of(3, kind), lam, mu))
    assert end.converged
    assert end.updates < 100


def test_an_alternation_that_is_cut_short_says_so():
    selection = solve(*scores_of(0), lam=0.05, mu=1000.0, max_updates=4)
    assert not selection.converged
    assert selection.iterations == 4


def test_a_multi_start_is_seldom_better(record_property):
    better, gains = 0, []
    for seed in range(100):
        problem, _ = case(["generic", "tied"][seed % 2], seed)
        inner = Problem.of(problem.pos, problem.neg, problem.lam, problem.mu)

        def end_value(start, inner=inner, problem=problem):
            *_, end = alternate(inner, start[1])
            return problem.K(problem.v(end.V), problem.u(end.U))

        best = min(end_value((1.0, U)) for U in np.linspace(0, 1, 9))
        gain = end_value((1.0, 1.0)) - best
        better += gain > 1e-9
        gains.append(gain)
    record_property("multi_start_better_share", float(better / 100))
    record_property("multi_start_largest_gain", float(max(gains)))
    print(f"a multi-start was better in {better} of 100 problems, by at most {max(gains):.3g}")
    assert better <= 30


def test_mu_zero_keeps_exactly_the_losses_below_lambda():
    s_pos = np.array([2.0, 1.0, 0.0], np.float32)
    neg = ClassScores.from_array([0.0, 0.5])
    losses = np.array([np.maximum(0, 1 - s + neg.sorted.astype(float)).mean() for s in s_pos])
    kept = update_v(ClassScores.from_array(s_pos), neg, 1.0, float(losses[1]), 0.0)
    assert kept == 1 / 3, "a loss equal to λ is not below it"


def test_ties_at_the_threshold_share_one_weight():
    s_pos = np.array([2.0, 0.5, 0.5, 0.5, -4.0])
    s_neg = np.array([-0.2, 0.0, 0.1, 3.0])
    selection = solve(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), lam=0.2, mu=0.5)
    v = selection.positive_weights(s_pos)
    assert 0.0 < v[1] < 1.0
    assert v[1] == v[2] == v[3]
    assert v.mean() == pytest.approx(selection.positive_fraction, abs=1e-12)


def test_sharing_a_tied_weight_leaves_the_objective_unchanged():
    problem = Case(np.array([2.0, 0.5, 0.5, 0.5, -4.0]), np.array([-0.2, 0.0, 0.1, 3.0]), 0.2, 0.5)
    selection = solve(problem.pos, problem.neg, problem.lam, problem.mu)
    v, u = selection.positive_weights(problem.s_pos), selection.negative_weights(problem.s_neg)
    assert selection.objective == pytest.approx(problem.K(v, u), abs=1e-14)


score_lists = st.one_of(
    st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=30),
    st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=1, max_size=30),
)
paces = st.tuples(st.floats(0.01, 3.0), st.sampled_from([0.0, 0.3, 1.0, 20.0]))


def solve_or_none(s_pos, s_neg, pace):
    try:
        return solve(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), *pace)
    except CollapseError:
        return None


@settings(max_examples=60, deadline=None)
@given(score_lists, score_lists, paces, st.randoms(use_true_random=False))
def test_the_selection_does_not_depend_on_the_order_of_rows(s_pos, s_neg, pace, random):
    first = solve_or_none(s_pos, s_neg, pace)
    for scores in (s_pos, s_neg):
        random.shuffle(scores)
    assert solve_or_none(s_pos, s_neg, pace) == first


@settings(max_examples=60, deadline=None)
@given(score_lists, score_lists, paces)
def test_weights_are_a_monotone_function_of_the_score_with_the_reported_mean(s_pos, s_neg, pace):
    selection = solve_or_none(s_pos, s_neg, pace)
    if selection is None:
        return
    v = selection.positive_weights(np.sort(s_pos))
    u = selection.negative_weights(np.sort(s_neg))
    assert np.all(np.diff(v) >= 0)
    assert np.all(np.diff(u) <= 0)
    assert len(set(v) - {0.0, 1.0}) <= 1
    assert v.mean() == pytest.approx(selection.positive_fraction, abs=1e-9)
    assert u.mean() == pytest.approx(selection.negative_fraction, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(score_lists, score_lists, paces)
def test_the_objective_equals_brute_force(s_pos, s_neg, pace):
    selection = solve_or_none(s_pos, s_neg, pace)
    if selection is None:
        return
    problem = Case(np.array(s_pos), np.array(s_neg), *pace)
    v = selection.positive_weights(problem.s_pos)
    u = selection.negative_weights(problem.s_neg)
    assert selection.objective == pytest.approx(problem.K(v, u), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
)
def test_huge_scores_give_finite_fractions(s_pos, s_neg):
    selection = solve_or_none(s_pos, s_neg, (0.5, 0.5))
    if selection is not None:
        assert 0.0 < selection.positive_fraction <= 1.0
        assert 0.0 < selection.negative_fraction <= 1.0


def test_weights_cast_scores_to_float32_first():
    s_pos = np.random.default_rng(0).normal(1, 1, 50)
    selection = solve(ClassScores.from_array(s_pos), ClassScores.from_array(-s_pos), 0.3, 0.3)
    np.testing.assert_array_equal(
        selection.positive_weights(s_pos), selection.positive_weights(s_pos.astype(np.float32))
    )
    assert selection.positive_weights(np.float64(np.float32(selection.tau_positive)) + 1e-12) == pytest.approx(
        selection.phi_positive
    )


def test_an_emptied_class_is_an_error_that_names_class_lambda_mu_and_remedy():
    pos, neg = scores_of(0, "untrained")
    with pytest.raises(CollapseError, match=r"no positive row at lam=0\.3, mu=0\.05.*Raise .* nu or mu.*pretrain"):
        solve(pos, neg, lam=0.3, mu=0.05)
    with pytest.raises(CollapseError, match="no negative row"):
        solve(pos, neg, lam=0.3, mu=0.05, start=(1.0, 0.0))


@pytest.mark.parametrize("mu", [0.05, 0.15, 0.24, 0.26, 0.5, 2.0])
@pytest.mark.parametrize("lam", [0.05, 0.3, 0.8])
def test_negatives_stay_empty_exactly_when_the_design_says_so(lam, mu):
    pos, neg = scores_of(1, "untrained")
    top = min(1.0, lam / (2 * mu))
    positives = np.sort(pos.sorted.astype(float))[::-1]
    weights = weights_of(top, len(positives))
    easiest_loss = np.maximum(0, 1 - positives + float(neg.sorted[0])) @ weights / len(positives)
    stays = update_u(pos, neg, update_v(pos, neg, 0.0, lam, mu), lam, mu) == 0.0
    assert stays == (easiest_loss >= lam + 2 * mu * top)
    if mu > 0.25:
        assert not stays


@pytest.mark.parametrize("lam", [0.0, -1.0, math.nan, math.inf])
def test_lambda_must_be_positive_and_finite(lam):
    with pytest.raises(InvalidPaceError, match="lam must be finite and > 0, not") as caught:
        solve(*scores_of(0), lam=lam, mu=0.3)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("mu", [-0.1, math.nan, math.inf])
def test_mu_must_not_be_negative(mu):
    with pytest.raises(InvalidPaceError, match="mu must be finite and >= 0, not"):
        solve(*scores_of(0), lam=0.3, mu=mu)


@pytest.mark.parametrize("start", [(0.5, 1.5), (1.5, 0.5), (-0.1, 0.5), (0.5, -0.1), (math.nan, 0.5)])
def test_a_start_outside_the_unit_square_is_an_error(start):
    with pytest.raises(InvalidPaceError, match="start"):
        solve(*scores_of(0), lam=0.3, mu=0.3, start=start)


@pytest.mark.parametrize("start", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)])
def test_a_start_may_be_a_corner_of_the_unit_square(start):
    selection = solve(*scores_of(0), lam=0.3, mu=0.3, start=start)
    assert 0 < selection.positive_fraction <= 1


def test_starting_at_the_solution_stays_there():
    pos, neg = scores_of(0)
    first = solve(pos, neg, 0.3, 0.3)
    again = solve(pos, neg, 0.3, 0.3, start=(first.positive_fraction, first.negative_fraction))
    assert again.positive_fraction == pytest.approx(first.positive_fraction, abs=1e-12)
    assert again.negative_fraction == pytest.approx(first.negative_fraction, abs=1e-12)
    assert again.iterations <= 5


def test_the_objective_is_computed_only_when_asked_for(monkeypatch):
    def fail(*_):
        raise AssertionError("the objective was computed")

    monkeypatch.setattr("bspauc_spark.selection.solution.objective", fail)
    solve(*scores_of(0), 0.3, 0.3).positive_weights([0.0])


def test_a_selection_survives_json_with_its_objective():
    selection = solve(*scores_of(0), 0.3, 0.3)
    again = Selection.from_dict(json.loads(json.dumps(selection.to_dict())))
    assert again == selection
    assert again.objective == selection.objective


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("phi_positive", "phi_negative") for value in (-0.1, 1.1)),
        *((name, value) for name in ("positive_fraction", "negative_fraction") for value in (-0.1, 1.1)),
        *((name, -0.1) for name in ("lam", "mu")),
        ("iterations", -1),
        ("converged", 1),
    ],
)
def test_a_stored_selection_that_none_can_be_is_refused(name, value):
    plain = solve(*scores_of(0), 0.3, 0.3).to_dict()
    with pytest.raises(MalformedError, match=name):
        Selection.from_dict({**plain, name: value})


def test_a_selection_sent_without_its_objective_says_so():
    again = Selection.from_dict(solve(*scores_of(0), 0.3, 0.3).to_dict(objective=False))
    with pytest.raises(BSPAUCError, match="without its objective"):
        _ = again.objective


def test_a_pickled_selection_is_small_and_equal():
    selection = solve(*scores_of(0, "trained"), 0.3, 0.3)
    data = pickle.dumps(selection)
    assert len(data) < 1000
    assert pickle.loads(data) == selection
    assert pickle.loads(data).objective == selection.objective


def test_everything_keeps_every_row_with_the_mean_hinge_as_objective():
    problem = Case(*spread(0), lam=0.0, mu=0.0)
    everything = Selection.everything(problem.pos, problem.neg)
    extremes = [-3.4e38, 0.0, 3.4e38]
    assert everything.positive_weights(extremes).tolist() == [1.0, 1.0, 1.0]
    assert everything.negative_weights(extremes).tolist() == [1.0, 1.0, 1.0]
    assert everything.objective == pytest.approx(problem.xi.mean(), rel=1e-12)
    assert everything.apd == 0.0
    assert (everything.phi_positive, everything.phi_negative) == (1.0, 1.0)
    assert (everything.lam, everything.mu, everything.lead) == (0.0, 0.0, 0.0)
    assert (everything.iterations, everything.converged) == (0, True)


def test_a_selection_of_everything_keeps_everything_at_other_scores():
    everything = Selection.everything(*scores_of(0, "separable"))
    for kind in ("separable", "trained"):
        pos, neg = scores_of(1, kind)
        again = solve_again(everything, pos, neg)
        assert again == Selection.everything(pos, neg)
        assert again.scores == (pos, neg)


@pytest.mark.parametrize("kind", ["separable", "trained", "noisy"])
def test_a_selection_is_solved_again_at_other_scores_with_its_own_pace(kind):
    last = calibrate_classes(*scores_of(0, kind), 0.9, 0.6, nu=1.0).selection
    pos, neg = scores_of(1, kind)
    again = solve_again(last, pos, neg)
    assert (again.lam, again.mu, again.lead) == (last.lam, last.mu, last.lead)
    # Both blocks are optimal.
    assert again.positive_fraction == pytest.approx(
        update_v(pos, neg, again.negative_fraction, last.lam, last.mu, last.lead), abs=1e-8
    )
    assert again.negative_fraction == pytest.approx(
        update_u(pos, neg, again.positive_fraction, last.lam, last.mu, last.lead), abs=1e-8
    )


def test_thresholds_stay_where_solving_again_would_empty_a_class():
    last = solve(*scores_of(0, "separable"), 1e-4, 0.0)
    pos, neg = (ClassScores.from_array([score]) for score in (-1.0, 1.0))
    with pytest.raises(CollapseError):
        solve(pos, neg, last.lam, last.mu, last.fractions)
    again = solve_again(last, pos, neg)
    assert again == last
    assert again.scores == (pos, neg)


def test_a_selection_cannot_be_changed_and_shows_no_scores():
    selection = solve(*scores_of(0), 0.3, 0.3)
    with pytest.raises(FrozenInstanceError):
        selection.lam = 1.0
    assert "scores" not in repr(selection)


def reachable(pos, neg, fraction, mu, nu) -> bool:
    """Whether some λ of a fine grid makes ``solve`` keep the fraction."""
    for lam in np.geomspace(1e-6, 10, 80):
        try:
            kept = solve(pos, neg, lam, nu * lam if mu is None else mu)
        except CollapseError:
            continue
        if abs((kept.positive_fraction + kept.negative_fraction) / 2 - fraction) <= 0.01:
            return True
    return False


@pytest.mark.parametrize("kind", ["trained", "untrained", "separable", "noisy"])
@pytest.mark.parametrize("pull", [{"mu": 0.3}, {"nu": 1.0}, {"nu": 10.0}, {"mu": 0.1}], ids=str)
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7, 0.85, 1.0])
def test_calibrate_then_solve_keeps_the_fraction_or_says_that_it_cannot(kind, pull, fraction):
    pos, neg = scores_of(5, kind)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        lam = calibrate(pos, neg, fraction, **pull)
    selection = solve(pos, neg, lam, pull["mu"] if "mu" in pull else pull["nu"] * lam)
    kept = (selection.positive_fraction + selection.negative_fraction) / 2
    if abs(kept - fraction) <= 0.01:
        assert not said
    else:
        assert [(warning.category, warning.filename) for warning in said] == [(BSPAUCWarning, __file__)]
        assert not reachable(pos, neg, fraction, pull.get("mu"), pull.get("nu"))


@pytest.mark.parametrize("nu", [1.0, 10.0])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_the_default_kind_of_pace_is_reached_exactly_on_an_untrained_network(fraction, nu):
    found = calibrate_fraction(*scores_of(6, "untrained"), fraction, nu=nu)
    assert found.gap < 1e-3
    assert found.selection.mu == nu * found.selection.lam


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.3])
def test_below_the_fraction_that_costs_nothing_calibration_keeps_that_one(fraction):
    pos, neg = scores_of(7, "trained")
    found = calibrate_fraction(pos, neg, fraction, nu=1.0)
    V, U = found.selection.fractions
    assert pytest.approx(U, abs=0.02) == V
    top = np.sort(pos.sorted)[::-1][math.ceil(V * len(pos)) - 1]
    bottom = neg.sorted[math.ceil(U * len(neg)) - 1]
    assert 1.0 - float(top) + float(bottom) < 0.05
    assert found.gap == pytest.approx(found.fraction - fraction)
    assert 0.0 < found.selection.lam <= 1e-6


def test_calibration_starts_solve_at_its_own_point_unless_told_otherwise():
    pos, neg = ClassScores.from_array([1.4, -0.6]), ClassScores.from_array([-1.8, -1.1])
    assert calibrate_fraction(pos, neg, 0.66, nu=1.0).selection.fractions == pytest.approx((0.66, 0.66))
    assert calibrate_fraction(pos, neg, 0.66, nu=1.0, cold=True).selection.fractions == pytest.approx((0.5, 1.0))


def test_a_lambda_that_empties_a_class_counts_as_keeping_nothing():
    # Below some λ a class is empty; just above it half of all rows is kept.
    found = calibrate_fraction(ClassScores.from_array([0.0]), ClassScores.from_array([0.0]), 0.4, mu=0.1, cold=True)
    assert found.fraction == pytest.approx(0.5, abs=1e-6)


def test_of_several_stationary_points_the_one_that_solve_stays_at_is_taken():
    found = calibrate_fraction(ClassScores.from_array([0.0]), ClassScores.from_array([0.1]), 0.71, mu=0.2, cold=True)
    assert found.selection.fractions == pytest.approx((0.42, 1.0))


EVERYTHING = Selection.everything(ClassScores.from_array([1.0]), ClassScores.from_array([0.0]))


def test_a_gap_of_a_hundredth_counts_as_reached():
    assert Calibration(EVERYTHING, gap=0.01).reached
    assert not Calibration(EVERYTHING, gap=0.0101).reached


def test_solving_from_a_calibrated_start_keeps_it():
    pos, neg = scores_of(8, "noisy")
    found = calibrate_fraction(pos, neg, 0.85, nu=1.0)
    selection = solve(pos, neg, found.selection.lam, found.selection.mu, start=found.selection.fractions)
    kept = (selection.positive_fraction, selection.negative_fraction)
    assert kept == pytest.approx(found.selection.fractions, abs=1e-9)


@pytest.mark.parametrize("pull", [{}, {"mu": 0.3, "nu": 1.0}, {"mu": -1.0}, {"nu": math.nan}])
def test_calibration_wants_exactly_one_valid_mu_or_nu(pull):
    with pytest.raises(InvalidPaceError):
        calibrate(*scores_of(0), 0.5, **pull)


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.1, math.nan])
def test_calibration_wants_a_fraction(fraction):
    with pytest.raises(InvalidPaceError, match="fraction must be"):
        calibrate(*scores_of(0), fraction, nu=1.0)


@pytest.mark.parametrize("kind", ["trained", "untrained", "noisy"])
@pytest.mark.parametrize(("V", "U"), [(0.7, 0.95), (0.9, 0.75), (0.3, 0.95), (0.95, 0.3), (0.123, 0.956)])
@pytest.mark.parametrize("nu", [0.5, 1.0, 10.0])
def test_any_fractions_of_the_two_classes_can_be_kept_where_their_thresholds_cost_something(kind, V, U, nu):
    pos, neg = scores_of(11, kind)
    found = calibrate_classes(pos, neg, V, U, nu=nu)
    one_row = 1 / 300
    assert found.selection.fractions == pytest.approx((V, U), abs=one_row)
    assert found.selection.mu >= nu * found.selection.lam * (1 - 1e-12)
    again = solve(
        pos, neg, found.selection.lam, found.selection.mu, start=found.selection.fractions, lead=found.selection.lead
    )
    assert (again.positive_fraction, again.negative_fraction) == pytest.approx(found.selection.fractions, abs=one_row)


@pytest.mark.parametrize(("V", "U"), [(1.0, 0.8), (0.8, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("kind", ["trained", "untrained", "separable", "noisy"])
def test_a_class_can_be_kept_whole(kind, V, U):
    pos, neg = scores_of(10, kind)
    found = calibrate_classes(pos, neg, V, U, nu=1.0)
    assert found.selection.fractions == pytest.approx((V, U), abs=0.01) or kind == "separable"
    assert found.gap == pytest.approx(
        max(abs(found.selection.fractions[0] - V), abs(found.selection.fractions[1] - U)), abs=1e-12
    )


def test_the_fractions_of_classes_want_a_positive_nu():
    with pytest.raises(InvalidPaceError, match="nu must be finite and > 0"):
        calibrate_classes(*scores_of(0), 0.5, 0.5, nu=0.0)


def test_where_no_balance_holds_the_fractions_everything_is_kept_and_the_gap_reported():
    found = calibrate_classes(ClassScores.from_array([-3.0]), ClassScores.from_array([0.0]), 0.3, 1e-6, nu=0.001)
    assert found.selection.fractions == (1.0, 1.0)
    assert found.gap == pytest.approx(1 - 1e-6)
    assert not found.reached


def test_rows_that_cost_nothing_stay_whatever_fractions_are_asked_and_the_gap_is_reported():
    pos, neg = scores_of(11, "separable")
    found = calibrate_classes(pos, neg, 0.3, 0.3, nu=1.0)
    assert not found.reached
    assert found.gap == pytest.approx(max(found.selection.fractions) - 0.3, abs=1e-12)


@pytest.mark.parametrize("rises", [True, False])
def test_the_search_for_lambda_ends_at_the_fraction(rises):
    asked = []

    def keep(lam):
        asked.append(lam)
        return lam / (1 + lam) if rises else 1 / (1 + lam)

    _search(keep, 0.3, [1e-3, 1e-1, 10.0, 1e3])
    assert abs(keep(asked[-1]) - 0.3) < 0.001
    # Four points of the grid, and halvings of one interval until the fraction is met.
    assert 4 < len(asked) < 4 + 12


def test_the_search_for_lambda_gives_up_where_what_is_kept_jumps_over_the_fraction():
    asked = []

    def keep(lam):
        asked.append(lam)
        return float(lam > math.pi)

    _search(keep, 0.3, [1.0, 2.0, 8.0, 9.0])
    assert len(asked) == 4 + 25
    assert asked[-1] == pytest.approx(math.pi, rel=1e-6)


@pytest.mark.parametrize(
    ("s_pos", "s_neg", "fraction", "mu"),
    [
        (
            "0.4 0.2 -0.5 0",
            "0.3 0.7 -0.3 -0.1 0.2 0.2 0.2 0.2 -0.1 -0.3 0 0 0.2 -0.3 -0.2 0.3 -0.4 0.4 0.2 -0.2 0.4 0.4 0 0.5",
            0.2086,
            0.1,
        ),
        (
            "-0.1 0.3 0.2 1.4 1 0.2 0.1 3 0 -0.3 0.2 0.3 0.1 1.1 1.1 1.7 -0.1 -0.3 1.1 1.8 0.8",
            "0.4 -0.9 -1.3",
            0.8809,
            0.0,
        ),
        (
            "1.4 0.2 1.6 1.1 0.3 0.9 0.4 1.1 2 0.8 2 2.8 3.4 -0.4 0.8 2.5",
            "1.7 -1 0.8 -0.5 -1 -0.2 -0.5 0.8 -1 1.7 0.8 0.1 -0.3 -1.4 0.6 0 0.5 -0.2 -1 1.5 0.4 -0.2",
            0.7817,
            0.02,
        ),
    ],
)
def test_a_fraction_that_a_coarse_search_misses_is_found_by_a_closer_look(s_pos, s_neg, fraction, mu):
    pos, neg = (ClassScores.from_array(np.array(scores.split(), float)) for scores in (s_pos, s_neg))
    found = calibrate_fraction(pos, neg, fraction, mu=mu, cold=True)
    assert found.reached
    kept = solve(pos, neg, found.selection.lam, mu)
    assert (kept.positive_fraction + kept.negative_fraction) / 2 == pytest.approx(fraction, abs=0.01)


@pytest.mark.parametrize(
    ("s_pos", "s_neg", "V", "U", "nu", "times"),
    [
        ([-2.6, 0.4, -0.6, -0.5], [-0.2, -2.0], 0.3, 0.8, 0.02, 4),
        ([0.1, -0.3, 0.3], [-0.7, -1.4, 1.3, -1.9], 0.2, 0.8, 0.02, 16),
        ([-1.47495, 0.31311, 1.37399, 0.41503], [-0.91864, 1.24489], 0.2995, 0.5134, 0.00763, 64),
    ],
)
def test_where_a_weak_balance_does_not_hold_the_fractions_a_stronger_one_does(s_pos, s_neg, V, U, nu, times):
    found = calibrate_classes(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), V, U, nu=nu)
    assert found.reached
    assert found.selection.mu == pytest.approx(times * nu * found.selection.lam)
