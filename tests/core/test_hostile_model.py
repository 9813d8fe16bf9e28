"""A saved model that was tampered with: nothing of it is run, and it is refused or scores finitely."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bspauc_spark.errors import BSPAUCError, ModelFormatError
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.rows.rows import SparseBatch
from bspauc_spark.serving import Predictor, ServedSteps
from bspauc_spark.theta.first_layer import FirstLayer
from tests.helpers.models import (
    ARRAYS,
    BLOBS,
    BOMB,
    DESCRIPTIONS,
    FEATURES,
    FILE_TABLE,
    PLAN,
    ROWS,
    SPECS,
    STEPS,
    keys,
    scorer,
    use,
    write,
)
from tests.helpers.tampering import DEEP, MISSING, model, spoiled_array, spoiled_bytes, spoiled_plain, with_value

# Tries of each fuzz test.
COUNT = 60


@pytest.mark.parametrize("kind", SPECS)
def test_the_models_that_are_tampered_with_here_are_good(kind: str, tmp_path: Path) -> None:
    assert model(DESCRIPTIONS[kind], ARRAYS[kind]).keys() == BLOBS[kind].keys()
    loaded = BSPAUCModel.loadLocal(write(tmp_path / "resealed", model(DESCRIPTIONS[kind], ARRAYS[kind])))
    assert loaded.score_numpy(ROWS).tobytes() == scorer(kind).score_numpy(ROWS).tobytes()
    use(loaded)


JSON_TABLE: list[tuple[str, Any, str]] = [
    ("formatVersion", MISSING, "formatVersion is missing"),
    ("formatVersion", "1", "formatVersion must be a whole number"),
    ("formatVersion", True, "formatVersion must be a whole number"),
    ("formatVersion", 0, "formatVersion must be a whole number from 1 to 2, not 0"),
    ("formatVersion", 3, r"format version 3, written by bspauc_spark .*Install bspauc_spark"),
    ("formatVersion", 10**300, r"format version 1000\d*\.\.\., written by"),
    ("version", 5, "version must be text, not 5"),
    ("version", "\ud800", "version must be text, not a str"),
    ("surprise", 1, "'surprise' is unknown to this version"),
    ("checksum", MISSING, "checksum is missing"),
    ("sparse", 1, "sparse must be true or false, not 1"),
    ("threshold", "0.5", "threshold must be a finite number, not a str"),
    ("threshold", float("nan"), "threshold must be a finite number, not nan"),
    ("threshold", float("inf"), "threshold must be a finite number, not inf"),
    ("threshold", 10**400, "threshold must be a finite number"),
    ("negativeLabel", None, "negativeLabel must be a finite number, not None"),
    ("network", [], "network must be an object, not a list"),
    ("network.kind", "os.system", "network.kind must be 'mlp' or 'linear' or 'kernel' or 'table', not a str"),
    ("network.num_features", 0, "network.num_features must be a whole number from 1 to"),
    ("network.num_features", -(2**70), "network.num_features must be"),
    ("network.num_features", 2**31 - 1, r"theta.first.weight is float32 \[20, 8\], where float32 \[2147483647, 8\]"),
    ("network.num_features", 20.0, "network.num_features must be a whole number"),
    ("network.hidden_layers", "88", "network.hidden_layers must be a list"),
    ("network.hidden_layers", [8, "4"], r"network.hidden_layers\[1\] must be a whole number"),
    ("network.hidden_layers", [8, -4], r"network.hidden_layers\[1\] must be"),
    ("network.hidden_layers", [2**31 - 1] * 2, "theta.first.weight is float32"),
    ("network.hidden_layers", [8] * 1000, "theta.rest.0.weight is float32"),
    ("network.hidden_layers", [8] * 1001, "network.hidden_layers has 1,001 entries"),
    ("network.kernel_width", 0, "network.kernel_width must be a finite number above 0, not 0"),
    ("network.kernel_seed", -1, "network.kernel_seed must be"),
    ("network.build", "x", "network.'build' is unknown"),
    ("network.inputs", "scaled", "network.inputs must be 'raw' or 'auto'"),
    ("network.inputs", "auto", r"theta.first.weight is float32 \[20, 8\], where float32 \[0, 8\] belongs"),
    ("network.gaps", True, "network.gaps is true, and network.inputs is 'raw', which takes none"),
    ("calibration.knots", [], "calibration.knots has 0 entries"),
    ("calibration.knots", [0.0, 1.0], "calibration has 2 knots and"),
    ("calibration.knots.0", 1e30, "calibration does not rise"),
    ("calibration.values.0", 1.5, r"calibration.values\[0\] must be a finite number from 0 to 1, not 1.5"),
    ("calibration.e0", 1.0, "calibration.e0 must be"),
    ("calibration.positive_share", 0.0, "calibration.positive_share must be"),
    ("calibration.rate_floor", [0.1], "calibration.rate_floor has 1 entries"),
    ("calibration.rate_floor", [0.0, 0.1], r"calibration.rate_floor\[0\] must be"),
    ("calibration.slope", [1], "calibration.slope must be a finite number, not a list"),
    ("selection", {}, "selection.tau_positive is missing"),
    ("selection.scores", [1, 2], "selection.'scores' is unknown"),
    ("selection.phi_positive", 2, "selection.phi_positive must be"),
    ("selection.lam", -1e-9, "selection.lam must be a finite number of at least 0"),
    ("selection.iterations", 1.5, "selection.iterations must be a whole number"),
    ("selection.converged", 0, "selection.converged must be true or false"),
    ("summary", [], "summary must be an object"),
    ("summary.rounds", {"0": 1}, "summary.rounds must be a list"),
    ("summary.rounds.0.lam", "low", r"summary.rounds\[0\].lam must be a finite number"),
    ("summary.rounds.0.round", None, r"summary.rounds\[0\].round must be a whole number"),
    ("summary.rounds.0.train_auc", MISSING, r"summary.rounds\[0\].train_auc is missing"),
    ("summary.best_round", 3, "summary.best_round is 3 of 2 rounds"),
    ("summary.counts.positives", -1, "summary.counts.'positives' must be a whole number"),
    (
        "summary.diagnostics.rows",
        "<script>",
        "summary.diagnostics.rows must be 'validation' or 'out-of-fold' or 'training'",
    ),
    ("summary.diagnostics.members", -1, "summary.diagnostics.members must be a whole number from 0 to 64, not -1"),
    ("summary.diagnostics.wrong_shares", [0.1], r"summary.diagnostics.wrong_shares has 1 entries"),
    ("summary.diagnostics.edges", [0.0, 1.0], "summary.diagnostics has histograms or curves of differing lengths"),
    ("summary.diagnostics.precision", [0.5], "summary.diagnostics has histograms or curves of differing lengths"),
    ("summary.diagnostics.kept", {}, "summary.diagnostics.kept.positives is missing"),
    ("summary.about.params", "x", "summary.about.params must be an object"),
    ("summary.about.params.deep", [[[[[[[[[[1]]]]]]]]]], "is nested too deeply"),
    ("summary.about.params.x", float("nan"), "must be a finite number"),
]


@pytest.mark.parametrize(
    ("path", "value", "reason"), JSON_TABLE, ids=[f"{p}-{str(v)[:20]!a}" for p, v, _ in JSON_TABLE]
)
def test_a_changed_value_is_refused_with_its_place(path: str, value: Any, reason: str, tmp_path: Path) -> None:
    changed = with_value(DESCRIPTIONS["mlp"], keys(path), value)
    folder = write(tmp_path, model(changed, ARRAYS["mlp"]))
    with pytest.raises(ModelFormatError, match=reason) as raised:
        BSPAUCModel.loadLocal(folder)
    assert "model" in str(raised.value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("network.inputs", "raw", "network.inputs is 'raw', and a table has 'auto'"),
        ("network.landmarks", -1, "network.landmarks must be a whole number from 0 to 1000"),
        ("network.landmarks", 1001, "network.landmarks must be a whole number from 0 to 1000"),
        ("network.landmarks", 8, r"theta.coefficients is float32 \["),
        ("network.members", 3, r"theta.coefficients is float32 \["),
        ("network.kind", "mlp", "theta.members.0.first.weight is missing"),
    ],
)
def test_a_changed_value_of_a_table_is_refused(path: str, value: Any, reason: str, tmp_path: Path) -> None:
    changed = with_value(with_value(DESCRIPTIONS["table"], keys("network.gaps"), False), keys(path), value)
    with pytest.raises(ModelFormatError, match=reason):
        BSPAUCModel.loadLocal(write(tmp_path, model(changed, ARRAYS["table"])))


def test_a_table_with_the_inputs_of_wide_sparse_rows_is_refused(tmp_path: Path) -> None:
    arrays = {name: array for name, array in ARRAYS["table"].items() if ".inputs." not in name}
    arrays |= {"theta.inputs.scaled": np.arange(2, dtype=np.int32), "theta.inputs.divisors": np.ones(2, np.float32)}
    arrays |= {"theta.first.columns": np.arange(2, dtype=np.int32)}
    with pytest.raises(ModelFormatError, match="the inputs are those of dense rows"):
        BSPAUCModel.loadLocal(write(tmp_path, model(DESCRIPTIONS["table"], arrays)))


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.pop(name)


def put(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({name: np.ascontiguousarray(change(arrays[name]))})


def first_nan(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.flat[0] = np.nan
    return changed


ARRAY_TABLE: list[tuple[str, str, Callable[[dict[str, Any]], None], str]] = [
    ("a part is missing", "mlp", without("theta.rest.0.bias"), "theta.rest.0.bias is missing"),
    ("a curve is missing", "mlp", without("curves.scores"), "curves.scores is missing"),
    ("a part too many", "mlp", lambda a: a.update(extra=np.zeros(2)), "'extra' is no part of the network"),
    (
        "columns where none belong",
        "mlp",
        lambda a: a.update({"theta.first.columns": np.arange(3, dtype=np.int32)}),
        "fi",
    ),
    ("transposed", "mlp", put("theta.first.weight", lambda a: a.T), r"is float32 \[8, 20\], where float32 \[20, 8\]"),
    ("a longer row", "mlp", put("theta.first.bias", lambda a: a.repeat(2)), r"theta.first.bias is float32 \[16\]"),
    ("no rows", "mlp", put("theta.first.weight", lambda a: a[:0]), r"\[0, 8\]"),
    ("flat", "mlp", put("theta.first.weight", lambda a: a.reshape(-1)), r"\[160\]"),
    ("float64", "mlp", put("theta.first.weight", lambda a: a.astype(np.float64)), "float64"),
    ("float16", "mlp", put("theta.first.weight", lambda a: a.astype(np.float16)), "float16"),
    ("whole numbers", "mlp", put("theta.first.weight", lambda a: a.astype(np.int32)), "int32"),
    ("NaN", "mlp", put("theta.rest.1.weight", first_nan), "theta.rest.1.weight holds NaN or infinite"),
    ("infinite curve", "mlp", put("curves.positive", lambda a: a * np.inf), "curves.positive holds NaN or infinite"),
    ("curves that fall", "mlp", put("curves.scores", lambda a: a[::-1]), "curves.scores do not rise"),
    ("curves of differing lengths", "mlp", put("curves.negative", lambda a: a[1:]), "curves.negative is float64"),
    ("a curve of one point", "mlp", lambda a: [put(f"curves.{n}", lambda c: c[:1])(a) for n in CURVES], "do not rise"),
    ("knots that fall", "members", put("theta.knots", lambda a: a[:, ::-1]), "theta.knots do not rise"),
    ("equal levels", "members", put("theta.levels", lambda a: a * 0), "theta.levels do not rise"),
    ("columns beyond the rows", "sparse", put("theta.first.columns", lambda a: a + FEATURES), "in ascending order"),
    ("columns below 0", "sparse", put("theta.first.columns", lambda a: a - 2), "in ascending order"),
    ("a column twice", "sparse", put("theta.first.columns", lambda a: a // 5), "in ascending order"),
    ("columns as floats", "sparse", put("theta.first.columns", lambda a: a.astype(np.float32)), "where int32"),
    (
        "fewer columns",
        "sparse",
        put("theta.first.columns", lambda a: a[:2]),
        r"is float32 \[4, 1\], where float32 \[2, 1\]",
    ),
    ("no inputs at all", "table", lambda a: [a.pop(n) for n in list(a) if ".inputs." in n], "where float32"),
    ("an array of inputs less", "table", without("theta.inputs.ranks"), "theta.inputs.ranks is missing"),
    (
        "inputs of no network",
        "mlp",
        lambda a: a.update({"theta.inputs.gaps": np.zeros(1)}),
        "is no part of the network",
    ),
    ("numbers twice", "table", put("theta.inputs.numbers", lambda a: a // 2), "inputs.numbers are not numbers of fea"),
    ("gaps beyond the rows", "table", put("theta.inputs.gaps", lambda a: a + 15), "inputs.gaps are not numbers of fea"),
    ("gaps below 0", "table", put("theta.inputs.gaps", lambda a: a - 6), "inputs.gaps are not numbers of features"),
    ("more numbers than weights", "table", put("theta.inputs.numbers", lambda a: a[1:]), "where float32"),
    ("no spread", "table", put("theta.inputs.spread", lambda a: a * 0), "inputs.spread is not positive"),
    ("a width below 0", "table", put("theta.inputs.width", lambda a: -a), "inputs.width is not positive"),
    ("knots that fall", "table", put("theta.inputs.knots", lambda a: a[:, ::-1]), "inputs.knots do not rise"),
    ("one knot many times", "table", put("theta.inputs.knots", lambda a: a * 0), "inputs.knots do not rise"),
    ("far knots", "table", put("theta.inputs.knots", lambda a: a * np.float32(3e37)), "inputs.knots are too large"),
    ("NaN knots", "table", put("theta.inputs.knots", first_nan), "theta.inputs.knots holds NaN"),
    ("ranks that fall", "table", put("theta.inputs.ranks", lambda a: -a), "inputs.ranks do not rise from -3 to 3"),
    ("ranks beyond 3", "table", put("theta.inputs.ranks", lambda a: a * 2), "inputs.ranks do not rise from -3 to 3"),
    (
        "an odd number of knots",
        "table",
        lambda a: [put(f"theta.inputs.{n}", lambda t: t[:, :31])(a) for n in ("knots", "ranks")],
        "31 knots, where a power of two",
    ),
    (
        "inputs of sparse rows",
        "table",
        lambda a: a.update({"theta.inputs.scaled": np.zeros(1, np.int32)}),
        "the inputs are those of dense rows, and the first layer that of sparse ones, or otherwise",
    ),
    ("no coefficients", "table", without("theta.coefficients"), "theta.coefficients is missing"),
    ("a member less", "table", put("theta.coefficients", lambda a: a[:, :1]), r"theta.coefficients is float32 \["),
    ("NaN coefficients", "table", put("theta.coefficients", first_nan), "theta.coefficients holds NaN"),
    ("a landmark less", "table", put("theta.landmarks", lambda a: a[1:]), r"theta.landmarks is float32 \[6, "),
    ("far landmarks", "table", put("theta.landmarks", lambda a: a * 1e37), "theta: landmarks are farther from 0 than"),
    ("no widths", "table", without("theta.widths"), "theta.widths is missing"),
    ("a width of 0", "table", put("theta.widths", lambda a: a * 0), "theta: widths are below 1e-06"),
    ("a tiny width", "table", put("theta.widths", lambda a: a * 1e-40), "theta: widths are below 1e-06"),
    ("no verdict", "table", without("theta.verdict"), "theta.verdict is missing"),
    ("judged scores that fall", "table", put("theta.judged", lambda a: a[::-1]), "theta.judged do not rise"),
    ("mixed scores that fall", "table", put("theta.mixed", lambda a: a[::-1]), "theta.mixed do not rise"),
    ("too few coefficients", "kernel", put("theta.alpha", lambda a: a[:4]), r"\[4, 1\], where float32 \[12, 1\]"),
]
CURVES = ("scores", "positive", "negative")


@pytest.mark.parametrize(
    ("kind", "change", "reason"), [row[1:] for row in ARRAY_TABLE], ids=[r[0] for r in ARRAY_TABLE]
)
def test_weights_that_do_not_fit_are_refused(kind: str, change: Any, reason: str, tmp_path: Path) -> None:
    arrays = dict(ARRAYS[kind])
    change(arrays)
    folder = write(tmp_path, model(DESCRIPTIONS[kind], arrays))
    with pytest.raises(ModelFormatError, match=reason) as raised:
        BSPAUCModel.loadLocal(folder)
    assert str(folder) in str(raised.value)
    assert "model.safetensors" in str(raised.value)


@pytest.mark.parametrize("case", FILE_TABLE)
def test_a_file_that_is_none_of_ours_is_refused_and_named(case: str, tmp_path: Path) -> None:
    name, data = FILE_TABLE[case]
    write(tmp_path, {**BLOBS["mlp"], name: data})
    with pytest.raises(ModelFormatError, match=rf"the model at .* cannot be read: {name}: .*take another copy"):
        BSPAUCModel.loadLocal(tmp_path)


@pytest.mark.parametrize("place", ["weights", "json"])
def test_one_flipped_bit_that_changes_no_form_is_found_by_the_checksum(place: str, tmp_path: Path) -> None:
    blobs = dict(BLOBS["mlp"])
    if place == "weights":
        data = bytearray(blobs["model.safetensors"])
        data[-1000] ^= 1
        blobs["model.safetensors"] = bytes(data)
    else:
        blobs["model.json"] = blobs["model.json"].replace(b'"threshold": 0.25', b'"threshold": 0.24')
    assert blobs != BLOBS["mlp"]
    with pytest.raises(ModelFormatError, match="their checksum differs"):
        BSPAUCModel.loadLocal(write(tmp_path, blobs))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "steps.json"])
def test_a_pipe_or_device_in_place_of_a_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    Predictor(scorer("mlp"), ServedSteps()).save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelFormatError, match=f"{name} is not a regular file"):
        Predictor.load(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ModelFormatError, match=f"{name} is not a regular file"):
        Predictor.load(tmp_path)


def test_a_file_that_points_to_another_one_repeats_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"threshold": "hunter2", "hunter2": "hunter2"}')
    folder = write(tmp_path / "model", BLOBS["mlp"])
    for name in BLOBS["mlp"]:
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFormatError) as raised:
        BSPAUCModel.loadLocal(folder)
    assert "hunter2" not in str(raised.value)


STEPS_TABLE: list[tuple[str, Any, str]] = [
    ("steps", MISSING, "steps is missing"),
    ("steps", {}, "steps must be a list"),
    ("steps.0", "impute", r"steps\[0\] is a step of kind None"),
    ("steps.0.kind", "python", r"steps\[0\] is a step of kind 'python', which this version does not know"),
    ("steps.0.kind", ["index"], r"steps\[0\] is a step of kind \['index'\], which"),
    ("steps.0.value", "2", r"steps\[0\].value must be a finite number"),
    ("steps.0.input", "../../x", r"steps\[0\] reads a column that is neither given nor made"),
    ("steps.1.labels", [1, 2], r"steps\[1\].labels\[0\] must be text"),
    ("steps.1.invalid", "eval", r"steps\[1\].invalid must be"),
    ("steps.2.size", 10**12, r"steps\[2\].size must be a whole number"),
    ("steps.2.size", 1 << 24, r"steps\[3\] reads columns of another kind or size"),
    ("steps.2.size", 0, r"steps\[4\] reads columns of another kind or size"),
    ("steps.2.input", "city", r"steps\[2\] reads columns of another kind"),
    ("steps.3.inputs", ["filled", "city"], r"steps\[3\] reads columns of another kind"),
    ("steps.3.inputs", [], r"steps\[3\].inputs has 0 entries"),
    ("steps.4.shift", [1.0], r"steps\[4\] reads columns of another kind or size"),
    ("steps", BOMB, r"steps\[25\] reads columns of another kind or size"),
    ("features", "filled", "the steps do not give 20 features"),
    ("threshold", float("nan"), "threshold must be a finite number"),
    ("inputs.amount", "object", "inputs.'amount' must be 'number' or 'text' or 'code'"),
    ("unknown", 1, "'unknown' is unknown"),
]


@pytest.mark.parametrize(
    ("path", "value", "reason"), STEPS_TABLE, ids=[f"{p}-{str(v)[:20]}" for p, v, _ in STEPS_TABLE]
)
def test_a_changed_step_of_a_served_pipeline_is_refused(path: str, value: Any, reason: str, tmp_path: Path) -> None:
    write(tmp_path, BLOBS["mlp"])
    (tmp_path / "steps.json").write_text(json.dumps(PLAN))
    assert Predictor.load(tmp_path).plan.steps
    (tmp_path / "steps.json").write_text(json.dumps(with_value(PLAN, keys(path), value)))
    with pytest.raises(ModelFormatError, match=rf"the model at .*steps\.json: ({reason})"):
        Predictor.load(tmp_path)


WIDE = {**STEPS[2], "output": "unused", "size": 1 << 24}


def test_a_wide_step_that_no_feature_depends_on_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, BLOBS["mlp"])
    frame = pd.DataFrame({"amount": [1.0, np.nan], "city": ["Rome", "Paris"]})
    served = []
    for steps in (STEPS, [*STEPS[:2], WIDE, *STEPS[2:]]):
        (tmp_path / "steps.json").write_text(json.dumps({**PLAN, "steps": steps}))
        predictor = Predictor.load(tmp_path)
        assert [step["output"] for step in predictor.plan.steps] == [step["output"] for step in STEPS]
        served.append(predictor.predict(frame))
    pd.testing.assert_frame_equal(*served)


def test_rows_are_served_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(scorer("mlp"), ServedSteps(**PLAN))
    frame = pd.DataFrame({"amount": np.arange(7.0), "city": ["Rome", "Bonn", "Oslo", None, "Rome", "Rome", "Bonn"]})
    whole, widths = predictor.predict(frame), []
    steps = Predictor._features
    monkeypatch.setattr("bspauc_spark.serving._MOST_VALUES", 60)
    monkeypatch.setattr(Predictor, "_features", lambda self, part: widths.append(len(part)) or steps(self, part))
    pd.testing.assert_frame_equal(predictor.predict(frame), whole)
    assert widths == [3, 3, 1]
    assert predictor.predict(frame[:0]).shape == (0, 3)


def test_a_list_of_steps_that_is_no_json_or_too_deep_is_refused(tmp_path: Path) -> None:
    write(tmp_path, BLOBS["mlp"])
    for text in ("{", "", DEEP):
        (tmp_path / "steps.json").write_text(text)
        with pytest.raises(ModelFormatError, match=r"steps\.json: (not JSON|its JSON is nested)"):
            Predictor.load(tmp_path)


def test_nothing_is_unpickled_when_a_model_is_loaded_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Predictor(scorer("mlp"), ServedSteps()).save(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    use(BSPAUCModel.loadLocal(tmp_path))
    assert Predictor.load(tmp_path).scorer.score_numpy(ROWS).shape == (5,)


def test_no_line_of_the_package_unpickles() -> None:
    forbidden = re.compile(
        r"pickle\.(load|Unpickler)|(import|from) ([\w.]*pickle|joblib|marshal|shelve|dill)\b|read_pickle|torch\.load\b"
        r"|allow_pickle\s*=\s*True"
    )
    root = Path(__file__).parents[2]
    sources = [*(root / "bspauc_spark").rglob("*.py"), *(root / "jobs").rglob("*.py")]
    assert len(sources) > 60
    assert [str(path) for path in sources if forbidden.search(path.read_text())] == []


def test_no_byte_of_a_saved_model_is_a_pickles() -> None:
    for blobs in BLOBS.values():
        for word in (
            b"pickle",
            b"__reduce__",
            b"builtins",
            b"__main__",
            b"torch._utils",
            b"numpy.core",
            b"numpy._core",
        ):
            assert not any(word in blob for blob in blobs.values())
        assert blobs["model.json"].isascii()


@pytest.mark.parametrize("kind", SPECS)
def test_a_model_with_spoiled_bytes_is_refused_or_scores_finitely(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    refused = 0
    for _ in range(COUNT):
        name = rng.choice(list(BLOBS[kind]))
        folder = write(tmp_path, {**BLOBS[kind], name: spoiled_bytes(BLOBS[kind][name], rng)})
        try:
            use(BSPAUCModel.loadLocal(folder))
        except ModelFormatError:
            refused += 1
    assert refused > 0.9 * COUNT


@pytest.mark.parametrize("kind", SPECS)
def test_a_model_that_was_changed_with_care_is_refused_or_scores_finitely(kind: str, tmp_path: Path) -> None:
    """The checksum is right: only the checks of the values stand between them and the arithmetic."""
    rng = random.Random(kind)
    refused, used = 0, 0
    for _ in range(COUNT):
        description, arrays = DESCRIPTIONS[kind], dict(ARRAYS[kind])
        if rng.random() < 0.5:
            description = spoiled_plain(description, rng)
        else:
            name = rng.choice(list(arrays))
            arrays[name] = spoiled_array(arrays[name], rng)
        try:
            use(BSPAUCModel.loadLocal(write(tmp_path, model(description, arrays))))
            used += 1
        except BSPAUCError:
            refused += 1
    assert refused > 0.3 * COUNT
    assert used > 0.1 * COUNT


def test_few_columns_of_very_many_features_are_found_without_a_table_of_all() -> None:
    """Two thousand million features are declared by one number in a file; a place for each would take 8 GB."""
    columns = torch.tensor([3, 70, 2**31 - 5], dtype=torch.int32)
    rows = SparseBatch(
        torch.tensor([70, 71, 2**31 - 5, 0, 3, 2**31 - 1], dtype=torch.int32),
        torch.arange(1.0, 7.0),
        torch.tensor([0, 2, 5], dtype=torch.int32),
    )
    layer = FirstLayer(2**31 - 1, 1, columns)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [10.0], [100.0]]))
        assert layer(rows)[:, 0].tolist() == [10.0, 305.0, 0.0]
    small = FirstLayer(200, 1, torch.tensor([3, 70, 199], dtype=torch.int32))
    near = SparseBatch(torch.tensor([70, 71, 199, 0, 3, 198], dtype=torch.int32), rows.values, rows.offsets)
    with torch.no_grad():
        small.weight.copy_(layer.weight)
        assert small(near)[:, 0].tolist() == [10.0, 305.0, 0.0]
