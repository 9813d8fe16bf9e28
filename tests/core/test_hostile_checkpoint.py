"""A checkpoint that was tampered with: nothing of it is run; it is refused, or the fit goes on with finite scores."""

from __future__ import annotations

import json
import pickle
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bspauc_spark import algorithm
from bspauc_spark.errors import BSPAUCError, CheckpointError
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.loop.monitor import Outcome
from bspauc_spark.results.history import Round
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows
from bspauc_spark.rows.storage import DiskFolder
from bspauc_spark.selection.pace import FractionPace
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker
from bspauc_spark.theta.workers import make_worker
from tests.helpers.rows import compressed
from tests.helpers.tampering import (
    DEEP,
    MISSING,
    message,
    opened,
    sealed,
    spoiled_array,
    spoiled_bytes,
    spoiled_plain,
    with_value,
)

IDENTITY = {"learningRate": 0.1, "data": {"fingerprint": "abc"}}
ROUNDS, FEATURES, COUNT = 3, 6, 60
NAME = "bspauc-round-00002.checkpoint"
KINDS = ("dense", "sparse", "sgd", "table")


def workers(kind: str) -> Worker:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(90, FEATURES)) * (rng.random((90, FEATURES)) < 0.6)).astype(np.float32)
    label = x[:, 0] - x[:, 1] > 0
    parts = {POSITIVES: x[label], NEGATIVES: x[~label]}
    rows = compressed(parts) if kind == "sparse" else {n: DenseRows([p], FEATURES) for n, p in parts.items()}
    settings = TrainingSettings(
        optimizer="sgd" if kind == "sgd" else "adamw",
        learning_rate=0.01,
        batch_size=8,
        steps=2,
        tau=0.01,
        pairing="all",
        averaging=0.9,
        seed=0,
    )
    table = NetworkSpec("table", FEATURES, members=2, inputs="auto", landmarks=len(x))
    return make_worker(rows, table if kind == "table" else NetworkSpec("mlp", FEATURES, (4,)), settings)


class Cut(Exception):
    """The driver dies here."""


def fit(folder: Path, kind: str, cut_after: int = 0) -> Outcome:
    def on_round(row: Round) -> None:
        if row.round == cut_after:
            raise Cut

    pace, checkpoints = FractionPace(0.5, 0.9, ROUNDS, 1.0), Checkpoints(DiskFolder(folder), IDENTITY)
    return algorithm.fit(workers(kind), pace, ROUNDS, tau=0.01, on_round=on_round, checkpoints=checkpoints)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The last of two checkpoints, by kind of fit."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        with pytest.raises(Cut):
            fit(folder, kind, 2)
        found[kind] = (folder / NAME).read_bytes()
    return found


def go_on(folder: Path, kind: str, data: bytes) -> Outcome:
    for old in folder.iterdir():
        old.unlink()
    (folder / NAME).write_bytes(data)
    outcome = fit(folder, kind)
    assert outcome.scores is not None
    assert np.isfinite(outcome.scores.positive.sorted).all()
    assert all(np.isfinite(array).all() for array in outcome.weights.values())
    assert [row.round for row in outcome.history] == [1, 2, 3]
    return outcome


@pytest.mark.parametrize("kind", KINDS)
def test_the_checkpoints_that_are_tampered_with_here_are_good(
    kind: str, saved: dict[str, bytes], tmp_path: Path
) -> None:
    assert message(*opened(saved[kind]), 2) == saved[kind]
    go_on(tmp_path, kind, saved[kind])


TABLE: list[tuple[str, Any, str]] = [
    ("word", 5, "word must be text"),
    ("values", [], "values must be an object"),
    ("values.format", "1", "written by bspauc_spark .* in format '1'"),
    ("values.format", MISSING, "format is missing"),
    ("values.format", 99, r"was written by bspauc_spark '[\d.]+' in format 99; this is .*Go on with that version"),
    (
        "values.version",
        "99.0.0",
        r"was written by bspauc_spark '99\.0\.0' in format 1; this is [\d.]+ .*Go on with that",
    ),
    ("values.version", 5, r"was written by bspauc_spark 5 in format 1; this is .*set another checkpointDir"),
    ("values.version", MISSING, "version is missing"),
    ("values.identity", None, "identity must be an object, not None"),
    ("values.identity.learningRate", "x" * 10_000, r"belongs to another fit: learningRate was 'x+\.\.\. and is 0\.1"),
    ("values.identity.mu", 1, "belongs to another fit: mu was 1 and is None"),
    ("values.progress", {}, "progress.history is missing"),
    ("values.progress.history", [], "progress.history has 0 entries"),
    ("values.progress.history.0.lam", "1", r"progress.history\[0\].lam must be a finite number"),
    ("values.progress.history.0.round", 7, "progress does not have the rounds 1 to 2"),
    ("values.progress.history.0.extra", 7, r"progress.history\[0\].'extra' is unknown"),
    ("values.progress.best_round", 0, "progress.best_round must be a whole number"),
    ("values.progress.best_round", 10**9, "one of them the best"),
    ("values.progress.best_selection", None, "progress.best_selection must be an object"),
    ("values.progress.last_selection.phi_negative", 3, "progress.last_selection.phi_negative must be"),
    ("values.progress.last_selection.lam", float("nan"), "must be a finite number, not nan"),
    ("values.progress.deep", [[[[[[[[[[1]]]]]]]]]], "is nested too deeply"),
    ("arrays", {}, "arrays must be a list"),
    ("arrays.0", "state.x", r"arrays\[0\] must be an object"),
    ("arrays.0.dtype", "object", r"arrays\[0\].dtype must be 'float32' or"),
    ("arrays.0.dtype", "O", r"arrays\[0\].dtype must be"),
    ("arrays.0.dtype", "float64", "bytes are left for it|bytes too many|not as this fit has it|not JSON"),
    ("arrays.0.shape", [2**52, 2**52], r"arrays\[0\] has the shape .*bytes are left for it"),
    ("arrays.0.shape", [0, 2**52, 2**52], r"arrays\[0\] has the shape"),
    ("arrays.0.shape", [-1], r"arrays\[0\].shape\[0\] must be a whole number of at least 0|from 0 to"),
    ("arrays.0.shape", [1] * 9, r"arrays\[0\].shape has 9 entries"),
    ("arrays.0.shape", [], "not as this fit has it|bytes too many"),
    ("arrays.0.name", "../../state", "the state has other parts|bytes too many"),
    ("arrays.1.name", "state.network.first.weight", "an array twice"),
]


def keys(path: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


@pytest.mark.parametrize(("path", "value", "reason"), TABLE, ids=[f"{p}-{str(v)[:20]}" for p, v, _ in TABLE])
def test_a_changed_value_is_refused_and_the_file_named(
    path: str, value: Any, reason: str, saved: dict[str, bytes], tmp_path: Path
) -> None:
    head, data = opened(saved["dense"])
    with pytest.raises(CheckpointError, match=rf"{NAME} .*({reason})") as raised:
        go_on(tmp_path, "dense", message(with_value(head, keys(path), value), data, 2))
    assert "emove" in str(raised.value), "it does not say what to do"
    assert len(str(raised.value)) < 800


FILES: dict[str, tuple[Callable[[dict[str, Any], bytes], bytes], str]] = {
    "nothing": (lambda head, data: b"", "is damaged"),
    "no head": (lambda head, data: sealed(b"", 2), "a description of 0 bytes"),
    "half a length": (lambda head, data: sealed(b"\x01\x00", 2), "a description of 0 bytes"),
    "a head of 2**63 bytes": (lambda head, data: message(head, data, 2, 2**63), "a description of 9,223,372,"),
    "a head beyond the file": (lambda head, data: message(head, data, 2, 10**7), "a description of 10,000,000"),
    "a head that ends early": (lambda head, data: message(head, data, 2, 100), "not JSON"),
    "a head too deep": (lambda head, data: message(DEEP.encode(), data, 2), "nested too deeply"),
    "a pickle": (lambda head, data: message(pickle.dumps(head), data, 2), "not JSON"),
    "bytes too few": (lambda head, data: message(head, data[:-9], 2), "bytes are left for it"),
    "bytes too many": (lambda head, data: message(head, data + b"12345", 2), "5 bytes too many"),
    "another round's": (lambda head, data: message(head, data, 3), "is damaged"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_none_of_ours_is_refused_and_named(case: str, saved: dict[str, bytes], tmp_path: Path) -> None:
    make, reason = FILES[case]
    with pytest.raises(CheckpointError, match=rf"{NAME} .*{reason}.*Remove it"):
        go_on(tmp_path, "dense", make(*opened(saved["dense"])))


def arrays_of(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    head, raw = opened(data)
    arrays, start = {}, 0
    for one in head["arrays"]:
        dtype = np.dtype(one["dtype"])
        end = start + dtype.itemsize * int(np.prod(one["shape"], dtype=int))
        arrays[one["name"]] = np.frombuffer(raw[start:end], dtype).reshape(one["shape"]).copy()
        start = end
    assert start == len(raw)
    return head, arrays


def rewritten(head: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    described = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    return message({**head, "arrays": described}, b"".join(a.tobytes() for a in arrays.values()), 2)


ARRAYS: list[tuple[str, str, Callable[[np.ndarray], np.ndarray], str]] = [
    ("dense", "state.network.first.weight", lambda a: a.T, "state.network.first.weight is float32"),
    ("dense", "state.network.first.weight", lambda a: a * np.float32("nan"), "holds NaN or infinite"),
    ("dense", "state.average.first.bias", lambda a: a.astype(np.float64), "weights have other names, shapes or types"),
    ("dense", "state.optimizer.0.exp_avg", lambda a: a[:1], "state.optimizer.0.exp_avg is float32"),
    ("dense", "state.optimizer.0.step", lambda a: a - 100, "state.optimizer.0.step counts no steps"),
    ("dense", "state.optimizer.0.step", lambda a: a.astype(np.int64), "state.optimizer.0.step is int64"),
    ("dense", "state.generator", lambda a: a[:100], "state.generator is uint8"),
    ("dense", "state.generator", lambda a: a * 0 + 255, "no state of a random generator"),
    ("dense", "state.steps_done", lambda a: a - 100, "state.steps_done counts no steps"),
    ("dense", "state.steps_done", lambda a: a + 2**62, "state.steps_done counts no steps"),
    ("dense", "weights.first.weight", lambda a: a[:2], "weights have other names, shapes or types"),
    ("sparse", "state.network.first.columns", lambda a: a + 2**30, "are other features than those of these rows"),
    ("sparse", "state.lazy.second", lambda a: a[1:], "state.lazy.second is float32"),
    ("sparse", "state.lazy.times", lambda a: a - 100, "state.lazy.times counts no steps"),
    ("table", "state.average.coefficients", lambda a: a[1:], "weights have other names, shapes or types"),
    ("table", "state.average.landmarks", lambda a: a + 7, "state.average: landmarks are farther from 0 than inputs"),
    ("table", "state.average.widths", lambda a: a * 0, "state.average: widths are below 1e-06"),
    ("table", "state.average.inputs.ranks", lambda a: a / 2, "state.average.inputs.ranks is not what these rows give"),
    ("table", "state.steps_done", lambda a: a - 100, "state.steps_done counts no steps"),
]


@pytest.mark.parametrize(("kind", "name", "change", "reason"), ARRAYS, ids=[f"{r[1]}-{r[3]}" for r in ARRAYS])
def test_arrays_that_are_not_this_fits_are_refused_and_the_file_named(
    kind: str, name: str, change: Any, reason: str, saved: dict[str, bytes], tmp_path: Path
) -> None:
    head, arrays = arrays_of(saved[kind])
    arrays[name] = change(arrays[name])
    with pytest.raises(CheckpointError, match=rf"{NAME} cannot be read: .*{reason}.*Remove it"):
        go_on(tmp_path, kind, rewritten(head, arrays))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_are_missing_or_too_many_are_refused(kind: str, saved: dict[str, bytes], tmp_path: Path) -> None:
    head, arrays = arrays_of(saved[kind])
    for name in arrays:
        with pytest.raises(CheckpointError, match="cannot be read"):
            go_on(tmp_path, kind, rewritten(head, {other: a for other, a in arrays.items() if other != name}))
    for name in ("state.optimizer.9.step", "state.other", "weights.other"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            go_on(tmp_path, kind, rewritten(head, {**arrays, name: np.zeros((), np.float32)}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_spoiled_bytes_is_refused(kind: str, saved: dict[str, bytes], tmp_path: Path) -> None:
    rng = random.Random(kind)
    for _ in range(COUNT):
        data = spoiled_bytes(saved[kind], rng)
        if data == saved[kind]:
            continue
        with pytest.raises(CheckpointError, match=NAME):
            go_on(tmp_path, kind, data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_was_changed_with_care_is_refused_or_goes_on(
    kind: str, saved: dict[str, bytes], tmp_path: Path
) -> None:
    """The checksum is right: only the checks of the values stand between them and the arithmetic."""
    rng = random.Random(kind)
    head, arrays = arrays_of(saved[kind])
    refused, used = 0, 0
    for _ in range(COUNT):
        choice = rng.random()
        if choice < 0.3:
            data = sealed(spoiled_bytes(saved[kind][24:], rng), 2)
        elif choice < 0.6:
            data = message(spoiled_plain(head, rng), opened(saved[kind])[1], 2)
        else:
            name = rng.choice(list(arrays))
            data = rewritten(head, {**arrays, name: spoiled_array(arrays[name], rng)})
        try:
            go_on(tmp_path, kind, data)
            used += 1
        except BSPAUCError:
            refused += 1
    assert refused > 0.3 * COUNT
    assert used > 0.05 * COUNT


def test_nothing_is_unpickled_when_a_fit_goes_on(
    saved: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    go_on(tmp_path, "dense", saved["dense"])


def test_no_byte_of_a_checkpoint_is_a_pickles(saved: dict[str, bytes]) -> None:
    for data in saved.values():
        # Every byte is of the JSON or of a number: the arrays' sizes add up to the rest.
        head, _ = arrays_of(data)
        assert json.dumps(head).isascii()
        for word in (b"pickle", b"__reduce__", b"builtins", b"__main__", b"NUMPY", b"torch._utils"):
            assert word not in data


def test_checkpoints_are_the_owners_alone(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        fit(tmp_path, "dense", 2)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


BOUNDED = """
import io, json, os, resource, struct, sys, time
import numpy as np
from pathlib import Path
from scipy import sparse
from bspauc_spark.errors import BSPAUCError, CheckpointError, ModelFormatError
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.serving import Predictor
from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.rows.storage import DiskFolder
from bspauc_spark.loop.checkpoint import Checkpoints
from tests.helpers import models
from tests.helpers.tampering import message, model, opened, with_value

folder = Path(sys.argv[1])
models.use(BSPAUCModel.loadLocal(models.write(folder, models.BLOBS["sparse"])))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)


def refused(load, *given):
    try:
        load(*given)
    except BSPAUCError as error:
        return type(error).__name__
    raise SystemExit(f"{load} took {given!r:.200}")


def described(kind, changes, arrays=None):
    description = models.DESCRIPTIONS[kind]
    for path, value in changes.items():
        description = with_value(description, models.keys(path), value)
    return models.write(folder, model(description, models.ARRAYS[kind] if arrays is None else arrays))


for case in ({"network.num_features": 2**31 - 1}, {"network.hidden_layers": [2**30, 2**30]}):
    refused(BSPAUCModel.loadLocal, described("mlp", case))
refused(BSPAUCModel.loadLocal, described("mlp", {"network.hidden_layers": [1] * 1_000_000}))
# Small things that become large ones.
refused(BSPAUCModel.loadLocal, described("mlp", {"summary": [[]] * 5_000_000}))
entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
header = ("{" + ",".join(entry % place for place in range(400_000)) + "}").encode()
weights = struct.pack("<Q", len(header)) + header
refused(BSPAUCModel.loadLocal, models.write(folder, {**models.BLOBS["mlp"], "model.safetensors": weights}))
refused(BSPAUCModel.loadLocal, described("kernel", {"network.num_features": 2**31 - 1}))
refused(BSPAUCModel.loadLocal, described("kernel", {"network.random_features": 2**31 - 1}))
for name, data in models.FILE_TABLE.values():
    refused(BSPAUCModel.loadLocal, models.write(folder, {**models.BLOBS["mlp"], name: data}))
models.write(folder, models.BLOBS["mlp"])
for path, value in (("steps.2.size", 10**12), ("steps", models.BOMB)):
    (folder / "steps.json").write_text(json.dumps(with_value(models.PLAN, models.keys(path), value)))
    refused(Predictor.load, folder)

# Files of a terabyte that take no space.
def grown(place, name, data, error, load, *given):
    (place / name).write_bytes(data)
    os.truncate(place / name, 1 << 40)
    started = time.monotonic()
    try:
        load(*given)
    except error as found:
        assert name in str(found) and "1,099,511,627,776 bytes, where at most" in str(found), found
        assert time.monotonic() - started < 5
    else:
        raise SystemExit(f"{name} was taken")


for name in ("model.json", "model.safetensors", "steps.json"):
    models.write(folder, models.BLOBS["mlp"])
    grown(folder, name, (folder / name).read_bytes(), ModelFormatError, Predictor.load, folder)
    # Whatever the size that the other file declares.
    described("mlp", {"network.hidden_layers": [2**30, 2**30]})
    if name != "steps.json":
        grown(folder, name, (folder / name).read_bytes(), ModelFormatError, BSPAUCModel.loadLocal, folder)
saved = Path(sys.argv[2])
saved.mkdir()
grown(saved, "bspauc-round-00002.checkpoint", b"", CheckpointError, Checkpoints(DiskFolder(saved), {}).load)

# A model of sparse rows may have very many features; those without weights cost nothing.
wide = BSPAUCModel.loadLocal(described("sparse", {"network.num_features": 2**31 - 1}))
row = sparse.csr_matrix(([1.0, 2.0], [4, 2**31 - 2], [0, 2]), shape=(1, 2**31 - 1))
assert np.isfinite(wide.score_numpy(row)).all()

head = {"word": "w", "values": {}, "arrays": []}
huge = lambda shape: {**head, "arrays": [{"name": "a", "dtype": "float64", "shape": shape}]}
for data in (
    message(head, b"", 0, 2**62),
    message(huge([2**40]), b"12345678", 0),
    message(huge([2**20, 2**20]), b"12345678", 0),
    message(huge([0, 2**50, 2**50]), b"", 0),
):
    refused(Message.from_bytes, data)
    (folder / "message").write_bytes(data)
    with (folder / "message").open("rb") as file:
        refused(Message.from_file, file)
print("refused all")
"""


def test_sizes_that_a_file_declares_take_no_memory(tmp_path: Path) -> None:
    """Under a limit of 300 MB above what the process has when it starts."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path / "model"), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "refused all", done.stdout[-500:] + done.stderr[-3000:]
