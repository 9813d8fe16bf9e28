"""A model without Spark: threshold, loss curves, files, numpy scoring, and what importing it does not import."""

from __future__ import annotations

import dataclasses
import json
import pickle
import struct
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from scipy import sparse

from bspauc_spark.errors import InvalidFeaturesError, ModelFormatError
from bspauc_spark.rows.kinds import CHUNK_ROWS
from bspauc_spark.saved import JSON_NAME, WEIGHTS_NAME
from bspauc_spark.scorer import LossCurves, Scorer, balanced_threshold, judged
from bspauc_spark.selection import Selection, solve
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores, negative_losses, positive_losses
from bspauc_spark.statistics.binned import BinnedScores, Contents, Histogram
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec
from bspauc_spark.theta.scores import Scores

FEATURES = 20


def class_scores(*scores: Any) -> tuple[ClassScores, ...]:
    return tuple(ClassScores.from_array(np.asarray(s, dtype=np.float32)) for s in scores)


def balanced_accuracy(s: np.ndarray, r: np.ndarray, threshold: float) -> float:
    return float(((s > threshold).mean() + (r <= threshold).mean()) / 2)


def best_over_all_cuts(s: np.ndarray, r: np.ndarray) -> float:
    every = np.unique(np.concatenate([s, r]).astype(float))
    cuts = [every[0] - 1, *(every[1:] + every[:-1]) / 2, every[-1] + 1]
    return max(balanced_accuracy(s, r, cut) for cut in cuts)


@pytest.mark.parametrize("seed", range(100))
def test_the_threshold_is_as_good_as_the_best_of_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 12, 2)
    shift = rng.choice([-1.0, 0.0, 1.0])
    s, r = rng.normal(shift, 1, n), rng.normal(0, 1, m)
    if seed % 2:
        s, r = np.round(s), np.round(r)
    s, r = s.astype(np.float32), r.astype(np.float32)
    threshold = balanced_threshold(*class_scores(s, r))
    assert balanced_accuracy(s, r, threshold) == pytest.approx(best_over_all_cuts(s, r), abs=1e-12)


def test_probability_and_threshold_are_of_validation_rows_if_there_are_some_tens_of_each_class() -> None:
    """Training rows are known by heart here; suspicion is about them all the same."""
    rng = np.random.default_rng(0)
    training = class_scores(rng.normal(5, 0.1, 300), rng.normal(-5, 0.1, 3000))
    s, r = (rng.normal(middle, 1, count).astype(np.float32) for middle, count in ((1, 50), (0, 900)))
    noise, threshold, found = judged(Scores(*training, class_scores(s, r)))
    assert found is not None
    assert found == estimate_label_noise(*class_scores(s, r))
    assert balanced_accuracy(s, r, threshold) == pytest.approx(best_over_all_cuts(s, r), abs=1e-12)
    grid = np.linspace(-6, 6, 50)
    assert np.array_equal(noise.probability(grid), found.probability(grid))
    suspicion = estimate_label_noise(*training).suspicion(grid, grid > 0)
    assert np.array_equal(noise.suspicion(grid, grid > 0), suspicion)
    few = judged(Scores(*training, class_scores(s[:49], r)))
    assert few == (estimate_label_noise(*training), balanced_threshold(*training), None)
    assert judged(Scores(*training)) == few


@pytest.mark.parametrize(
    ("s", "r", "threshold"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.5),
        ([0.0, 1.0], [2.0, 3.0], -1.0),
        ([1.0], [1.0], 0.0),
        ([1.0, 1.0, 5.0], [1.0, 0.0], 0.5),
        ([4.0, 1.0], [0.0], 0.5),
    ],
    ids=["separated", "reversed", "all tied", "tied", "one negative"],
)
def test_the_threshold_is_midway_between_neighbours(s: list[float], r: list[float], threshold: float) -> None:
    assert balanced_threshold(*class_scores(s, r)) == threshold


def test_a_threshold_between_neighbouring_floats_parts_them() -> None:
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2))
    assert float(low) < balanced_threshold(*class_scores([high], [low])) < float(high)


def noisy_scores(seed: int = 0) -> tuple[ClassScores, ...]:
    rng = np.random.default_rng(seed)
    return class_scores(rng.normal(1.5, 1, 300), rng.normal(0, 1, 900))


def exact_losses(
    scores: np.ndarray, label: np.ndarray, pos: ClassScores, neg: ClassScores, selection: Selection
) -> np.ndarray:
    kept = (selection.positive_fraction * len(pos), selection.negative_fraction * len(neg))
    return np.where(label, positive_losses(scores, neg, kept[1]), negative_losses(scores, pos, kept[0]))


def error_of_curves(pos: np.ndarray, neg: np.ndarray, held: Any = class_scores, kept: float = 0.8) -> float:
    """The largest one over scores in and beyond the classes, by which the curves miss the exact losses."""
    exact, (p, n) = class_scores(pos, neg), held(pos, neg)
    selection = dataclasses.replace(
        Selection.everything(*exact), positive_fraction=kept, negative_fraction=kept, scores=None
    )
    rng = np.random.default_rng(1)
    every = np.concatenate([exact[0].sorted, exact[1].sorted]).astype(float)
    near = rng.choice(every, 3000) + rng.uniform(-1.5, 1.5, 3000)
    far = rng.uniform(max(2 * every.min() - 5, -1e38), min(2 * every.max() + 5, 1e38), 1000)
    x = np.concatenate([every, near, far]).astype(np.float32)
    found = LossCurves.of(p, n, selection)
    assert (np.diff(found.scores) > 0).all()
    return max(
        float(np.abs(found.losses(x, label) - exact_losses(x, label, *exact, selection)).max())
        for label in (np.ones(x.size, dtype=bool), np.zeros(x.size, dtype=bool))
    )


def in_bins(*scores: Any) -> list[BinnedScores]:
    arrays = [np.asarray(s, dtype=np.float32) for s in scores]
    return [BinnedScores(Histogram.of(a), partial(Contents.of, a)) for a in arrays]


@pytest.mark.parametrize("held", [class_scores, in_bins])
@pytest.mark.parametrize("rows", [300, 40_000])
@pytest.mark.parametrize(
    ("far", "most"),
    [([], 1e-5), ([-1e4], 1e-5), ([-1e4, 1e4, 50.0], 1e-5), (-(10.0 ** np.linspace(1, 5, 400)), 2e5 / 4e6)],
    ids=["none", "one", "three", "hundreds"],
)
def test_curves_are_exact_to_a_bound_although_some_scores_are_far_away(
    held: Any, rows: int, far: Any, most: float
) -> None:
    rng = np.random.default_rng(0)
    pos = np.concatenate([rng.normal(1.5, 1, rows // 3), far])
    neg = np.concatenate([rng.normal(0, 1, rows), np.negative(far)])
    assert error_of_curves(pos, neg, held) < most
    assert error_of_curves(neg, pos, held) < most


@pytest.mark.parametrize("scale", [1e-6, 1e2, 1e6])
def test_the_error_of_curves_grows_with_the_scores_and_not_beyond(scale: float) -> None:
    rng = np.random.default_rng(0)
    pos, neg = scale * rng.normal(1, 1, 20_000), scale * rng.normal(0, 1, 20_000)
    assert error_of_curves(pos, neg) < 10 * scale / 4e6


def test_curves_of_few_and_of_equal_scores_are_exact() -> None:
    for pos, neg in (([0.5], [0.5]), ([0.0] * 5, [0.0] * 9), ([3e38], [-3e38]), ([1.0, 2.0, 2.0], [7.0])):
        size = max(np.abs([*pos, *neg]).max(), 1.0)
        assert error_of_curves(np.array(pos), np.array(neg), kept=1.0) < 1e-6 * size


def test_curves_at_equidistant_points_are_read_as_before() -> None:
    """Models saved by the first versions have such points."""
    x = np.linspace(-4, 6, 11)
    curves = LossCurves(x, np.maximum(0, 1 - x), np.maximum(0, 1 + x))
    asked = np.array([-10.0, -4.0, 0.25, 1.0, 6.0, 20.0])
    everyone, nobody = np.ones(6, dtype=bool), np.zeros(6, dtype=bool)
    np.testing.assert_allclose(curves.losses(asked, everyone), np.maximum(0, 1 - asked))
    np.testing.assert_allclose(curves.losses(asked, nobody), np.maximum(0, 1 + asked))


def test_curves_equal_brute_force_over_pairs() -> None:
    pos, neg = noisy_scores()
    selection = solve(pos, neg, 0.6, 0.6)
    v, u = selection.positive_weights(pos.sorted), selection.negative_weights(neg.sorted)
    s, r = pos.sorted.astype(float), neg.sorted.astype(float)
    x = np.linspace(-5, 5, 101)
    label = np.arange(101) % 2 == 0
    as_positive = (u * np.maximum(0, 1 - x[:, None] + r)).sum(axis=1) / len(r)
    as_negative = (v * np.maximum(0, 1 - s + x[:, None])).sum(axis=1) / len(s)
    found = LossCurves.of(pos, neg, selection).losses(x, label)
    np.testing.assert_allclose(found, np.where(label, as_positive, as_negative), atol=1e-3)


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    spec = NetworkSpec("mlp", FEATURES, (16, 12))
    network = LayeredNetwork(spec, torch.Generator().manual_seed(0))
    pos, neg = noisy_scores()
    selection = solve(pos, neg, 0.6, 0.6)
    return Scorer(
        spec=spec,
        sparse=False,
        weights={name: tensor.numpy().copy() for name, tensor in network.state_dict().items()},
        threshold=balanced_threshold(pos, neg),
        negative_label=0.0,
        label_noise=estimate_label_noise(pos, neg),
        selection=selection,
        curves=LossCurves.of(pos, neg, selection),
        summary={"rounds": [], "best_round": 0, "counts": {"positives": 300}},
    )


def features(rows: int = 50, filled: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(2)
    return (rng.normal(size=(rows, FEATURES)) * (rng.random((rows, FEATURES)) < filled)).astype(np.float32)


def test_blobs_bring_back_the_same_model(scorer: Scorer) -> None:
    again = Scorer.from_blobs(scorer.to_blobs())
    assert again.spec == scorer.spec
    assert again.selection == scorer.selection
    assert again.label_noise == scorer.label_noise
    assert (again.sparse, again.threshold, again.negative_label) == (scorer.sparse, scorer.threshold, 0.0)
    assert again.summary == scorer.summary
    for name, array in vars(scorer.curves).items():
        assert np.array_equal(getattr(again.curves, name), array)
    assert np.array_equal(again.score_numpy(features()), scorer.score_numpy(features()))
    assert again.to_blobs() == scorer.to_blobs()


def test_a_folder_brings_back_the_same_model(scorer: Scorer, tmp_path: Path) -> None:
    scorer.save(tmp_path / "new" / "folder")
    again = Scorer.load(tmp_path / "new" / "folder")
    assert again.to_blobs() == scorer.to_blobs()


def test_saved_bytes_are_json_and_raw_numbers_only(scorer: Scorer) -> None:
    """Nothing that is unpickled on reading: every byte is text, a JSON header or a number."""
    blobs = scorer.to_blobs()
    assert json.loads(blobs[JSON_NAME].decode("utf-8"))["formatVersion"] == 2
    weights = blobs[WEIGHTS_NAME]
    (length,) = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8 : 8 + length])
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert {entry["dtype"] for entry in tensors.values()} <= {"F32", "F64"}
    assert max(entry["data_offsets"][1] for entry in tensors.values()) == len(weights) - 8 - length
    assert blobs.keys() == {JSON_NAME, WEIGHTS_NAME}


def without(blob: bytes, *keys: str) -> bytes:
    description = json.loads(blob)
    target = description
    for key in keys[:-1]:
        target = target[key]
    del target[keys[-1]]
    return json.dumps(description).encode()


@pytest.mark.parametrize(
    "keys",
    [
        *[("formatVersion",), ("network",), ("network", "hidden_layers"), ("sparse",), ("threshold",)],
        *[("negativeLabel",), ("calibration",), ("calibration", "slope"), ("selection",), ("selection", "lam")],
        ("summary",),
    ],
    ids=".".join,
)
def test_a_missing_key_is_a_format_error_that_names_it(scorer: Scorer, keys: tuple[str, ...]) -> None:
    blobs = scorer.to_blobs()
    with pytest.raises(ModelFormatError, match=keys[-1]):
        Scorer.from_blobs({**blobs, JSON_NAME: without(blobs[JSON_NAME], *keys)})


def test_a_missing_curve_is_a_format_error(scorer: Scorer) -> None:
    blobs = scorer.to_blobs()
    arrays = safetensors.numpy.load(blobs[WEIGHTS_NAME])
    del arrays["curves.positive"]
    with pytest.raises(ModelFormatError, match=r"curves\.positive"):
        Scorer.from_blobs({**blobs, WEIGHTS_NAME: safetensors.numpy.save(arrays)})


@pytest.mark.parametrize("change", ["missing", "of another shape"])
def test_weights_that_do_not_fit_the_network_are_a_format_error(scorer: Scorer, change: str) -> None:
    blobs = scorer.to_blobs()
    arrays = safetensors.numpy.load(blobs[WEIGHTS_NAME])
    weight = arrays.pop("theta.first.weight")
    if change == "of another shape":
        arrays["theta.first.weight"] = weight[1:].copy()
    with pytest.raises(ModelFormatError, match="cannot be read"):
        Scorer.from_blobs({**blobs, WEIGHTS_NAME: safetensors.numpy.save(arrays)}).score_numpy(features())


@pytest.mark.parametrize("name", [JSON_NAME, WEIGHTS_NAME])
def test_a_missing_or_truncated_or_foreign_file_is_a_format_error(scorer: Scorer, name: str) -> None:
    blobs = scorer.to_blobs()
    with pytest.raises(ModelFormatError, match=f"lacks {name}"):
        Scorer.from_blobs({other: blob for other, blob in blobs.items() if other != name})
    for damaged in (blobs[name][:-20], blobs[name][:5], b"", b"\x80\x04\x95", b"[1, 2]", b"\xff" * 100):
        with pytest.raises(ModelFormatError, match="cannot be read"):
            Scorer.from_blobs({**blobs, name: damaged})


def test_another_format_version_is_named_with_the_package_that_wrote_it(scorer: Scorer) -> None:
    blobs = scorer.to_blobs()
    future = {**json.loads(blobs[JSON_NAME]), "formatVersion": 99, "version": "7.1"}
    with pytest.raises(ModelFormatError, match=r"format version 99, written by bspauc_spark 7\.1.*reads version 2"):
        Scorer.from_blobs({**blobs, JSON_NAME: json.dumps(future).encode()})


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no model at .*No such file"):
        Scorer.load(tmp_path / "nowhere")


def test_numpy_scores_equal_plain_torch_layers(scorer: Scorer) -> None:
    x = features(2 * CHUNK_ROWS + 77)
    with torch.no_grad():
        wanted = scorer.network.to_sequential()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(scorer.score_numpy(x), wanted, atol=1e-5)
    np.testing.assert_allclose(scorer.score_numpy(x.astype(float)), wanted, atol=1e-5)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.coo_matrix])
def test_sparse_matrices_score_as_dense_ones(scorer: Scorer, form: Any) -> None:
    x = features(CHUNK_ROWS + 10)
    x[5] = 0
    np.testing.assert_allclose(scorer.score_numpy(form(x)), scorer.score_numpy(x), atol=1e-5)


def test_a_part_of_a_sparse_matrix_scores_the_same_bits(scorer: Scorer) -> None:
    x = sparse.csr_matrix(features(CHUNK_ROWS + 10))
    assert np.array_equal(scorer.score_numpy(x[1000:]), scorer.score_numpy(x)[1000:])


def test_no_rows_give_no_scores(scorer: Scorer) -> None:
    assert scorer.score_numpy(np.empty((0, FEATURES))).shape == (0,)
    assert scorer.score_numpy(sparse.csr_matrix((0, FEATURES))).shape == (0,)


def test_the_linear_network_round_trips_to_plain_layers() -> None:
    network = LayeredNetwork(NetworkSpec("linear", FEATURES), torch.Generator().manual_seed(3))
    x = torch.from_numpy(features())
    plain = network.to_sequential()
    with torch.no_grad():
        torch.testing.assert_close(plain(x), network(x))
        plain[0].weight.zero_()
        assert network.first.weight.any(), "to_sequential shares its weights"


@pytest.mark.parametrize("shape", [(3, FEATURES + 1), (3, FEATURES - 1), (FEATURES,), (2, 3, FEATURES)], ids=str)
def test_another_width_is_an_error_that_says_both(scorer: Scorer, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidFeaturesError, match=r"have shape \(.*\); the model was fitted on 20 columns"):
        scorer.score_numpy(np.zeros(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_values_that_are_not_finite_in_float32_are_refused(scorer: Scorer, bad: float, form: Any) -> None:
    x = features().astype(float)
    x[3, 4] = bad
    with pytest.raises(InvalidFeaturesError, match="NaN or infinite"):
        scorer.score_numpy(form(x))


def masked() -> np.ma.MaskedArray[Any, Any]:
    return np.ma.masked_array(features(), mask=features() > 1)


def objects(value: object) -> np.ndarray:
    table = features(2).astype(object)
    table[1, 3] = value
    return table


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([[1.0] * FEATURES, [1.0]], "rows of differing sizes"),
        ([[10**400] + [1] * (FEATURES - 1)], "features have type object; numbers are needed"),
        (features().astype("M8[D]"), "datetime64.* numbers are needed"),
        (features().astype("m8[s]"), "timedelta64.* numbers are needed"),
        (features() + 1j, "complex.*; numbers are needed"),
        (sparse.csr_matrix(features() + 1j), "complex.*; numbers are needed"),
        (objects(np.datetime64("2020-01-01")), "object; numbers are needed"),
        (objects(np.timedelta64(1, "D")), "object; numbers are needed"),
        (objects(np.complex64(1j)), "object; numbers are needed"),
        (masked(), "features hold masked values"),
    ],
    ids=range(10),
)
def test_what_is_no_table_of_numbers_is_refused(scorer: Scorer, given: Any, reason: str) -> None:
    with pytest.raises(InvalidFeaturesError, match=reason):
        scorer.score_numpy(given)


def test_a_masked_array_without_masked_values_is_scored(scorer: Scorer) -> None:
    x = features()
    assert np.array_equal(scorer.score_numpy(np.ma.masked_array(x, mask=False)), scorer.score_numpy(x))


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize(("part", "value"), [("indices", 5000), ("indices", -3), ("indptr", 100_000), ("indptr", -1)])
def test_sparse_indices_outside_the_matrix_are_refused(scorer: Scorer, form: Any, part: str, value: int) -> None:
    matrix = form(features())
    getattr(matrix, part)[5] = value
    with pytest.raises(InvalidFeaturesError, match=r"indices outside its shape \(50, 20\)"):
        scorer.score_numpy(matrix)


def test_room_behind_the_stored_values_of_a_sparse_matrix_is_not_read(scorer: Scorer) -> None:
    x = sparse.csr_matrix(features())
    roomy = x.copy()
    roomy.data, roomy.indices = np.append(x.data, np.nan), np.append(x.indices, 5000)
    assert np.array_equal(scorer.score_numpy(roomy), scorer.score_numpy(x))


def test_an_everything_selection_is_stored_too(scorer: Scorer) -> None:
    pos, neg = noisy_scores()
    selection = Selection.everything(pos, neg)
    plain = json.loads(json.dumps(selection.to_dict()))
    assert Selection.from_dict(plain) == selection


def run_blocked(blocked: str, code: str) -> None:
    script = f"import sys\nsys.modules[{blocked!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_scoring_selecting_and_training_need_no_pyspark(scorer: Scorer, tmp_path: Path) -> None:
    scorer.save(tmp_path)
    run_blocked(
        "pyspark",
        "import numpy as np\n"
        "import bspauc_spark, bspauc_spark.selection, bspauc_spark.theta.worker, bspauc_spark.cluster.protocol\n"
        "from bspauc_spark.scorer import Scorer\n"
        f"assert Scorer.load({str(tmp_path)!r}).score_numpy(np.zeros((3, {FEATURES}))).shape == (3,)\n",
    )


def test_the_mathematics_and_the_staging_tasks_need_no_torch() -> None:
    run_blocked(
        "torch",
        "import bspauc_spark.selection, bspauc_spark.statistics, bspauc_spark.selection.label_noise\n"
        "import bspauc_spark.selection.pace\n"
        "import bspauc_spark.noise, bspauc_spark.rows.shard_task, bspauc_spark.rows.arrow\n",
    )


def test_a_scorer_holds_no_scores_of_the_rows_it_was_fitted_on(scorer: Scorer) -> None:
    pos, neg = noisy_scores()
    selection = solve(pos, neg, 0.6, 0.6)
    held = dataclasses.replace(scorer, selection=selection)
    again = dataclasses.replace(held, threshold=1.0)
    assert held.selection.scores is None
    assert held.selection.to_dict() == again.selection.to_dict() == selection.to_dict()
    assert selection.scores == (pos, neg)
    watched = weakref.ref(pos.sorted)
    del pos, neg, selection
    assert watched() is None


def test_what_a_reused_worker_holds_while_it_loads_models_is_not_held_for_ever(scorer: Scorer) -> None:
    blobs = [dataclasses.replace(scorer, threshold=float(n)).to_blobs() for n in range(12)]
    script = """
import gc, pickle, sys, weakref
from bspauc_spark.scorer import cached_scorer

class Batch:
    def __init__(self):
        self.itself = self

held = []
for number, blobs in enumerate(pickle.load(sys.stdin.buffer)):
    batch = Batch()
    scorer = cached_scorer(str(number), blobs)
    held.append((weakref.ref(batch), weakref.ref(scorer.network)))
    del batch, scorer
    gc.collect()
    frozen = frozen if number else gc.get_freeze_count()
batches, networks = (sum(one() is not None for one in some) for some in zip(*held))
print(batches, networks, frozen > 50_000, gc.get_freeze_count() <= frozen)
"""
    done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(blobs), capture_output=True, check=True)
    # Of the first, which was there when torch's objects were set aside; and the models that are kept.
    assert done.stdout.split() == [b"1", b"8", b"True", b"True"]
