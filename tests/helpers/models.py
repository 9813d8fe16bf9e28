"""Small models in full, to be tampered with."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from scipy import sparse

from bspauc_spark.model import BSPAUCModel
from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.history import Round
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.scorer import LossCurves, Scorer
from bspauc_spark.selection import solve
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.find_inputs import of_columns
from bspauc_spark.theta.inputs import DenseInputs
from bspauc_spark.theta.members import build
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.table import TableNetwork
from tests.helpers.tampering import DEEP

FEATURES = 20

COLUMNS = (1, 4, 7, 19)

SPECS = {
    "mlp": NetworkSpec("mlp", FEATURES, (8, 4)),
    "sparse": NetworkSpec("linear", FEATURES),
    "kernel": NetworkSpec("kernel", FEATURES, (), 6, 1.5, 3),
    "table": NetworkSpec("table", FEATURES, members=2, fold_seed=7, inputs="auto", gaps=True, landmarks=7),
    "members": NetworkSpec("mlp", FEATURES, (8, 4), members=2, fold_seed=5),
}


def summary(pos: ClassScores, neg: ClassScores) -> TrainingSummary:
    zeros = dict.fromkeys(Round.__dataclass_fields__, 0.5)
    rounds = tuple(Round(**{**zeros, "round": t, "updates": 2, "validation_auc": float("nan")}) for t in (1, 2))
    about = {
        "started": "2026-01-01 10:00+00:00",
        "seconds": 1.5,
        "workers": 0,
        "params": {"network": "mlp", "hiddenLayers": [8, 4]},
        "data": {"features": FEATURES},
        "versions": {"torch": "2"},
    }
    found = Diagnostics.of(Scores(pos, neg), solve(pos, neg, 0.6, 0.6), estimate_label_noise(pos, neg))
    return TrainingSummary(rounds, 2, {"positives": 40, "negatives": 90}, found, about)


def scorer(kind: str) -> Scorer:
    rng = np.random.default_rng(0)
    pos, neg = (ClassScores.from_array(rng.normal(middle, 1, n)) for middle, n in ((1.5, 40), (0.0, 90)))
    selection = solve(pos, neg, 0.6, 0.6)
    columns = torch.tensor(COLUMNS, dtype=torch.int32) if kind == "sparse" else None
    sample = rng.normal(size=(30, FEATURES)).round(1).astype(np.float32)
    sample[:, 2], sample[::3, 5] = sample[:, 2] > 0, np.nan
    inputs = DenseInputs(of_columns(sample), FEATURES) if SPECS[kind].inputs == "auto" else None
    network = build(SPECS[kind], torch.Generator().manual_seed(0), columns, inputs)
    if isinstance(network, TableNetwork):
        network.set_landmarks(network.prepare(torch.from_numpy(sample[:7])))
        network.coefficients.copy_(torch.from_numpy(rng.normal(size=network.coefficients.shape)))
    curves = LossCurves.of(pos, neg, selection)
    return Scorer(
        spec=SPECS[kind],
        sparse=kind == "sparse",
        weights={name: tensor.numpy().copy() for name, tensor in network.state_dict().items()},
        threshold=0.25,
        negative_label=0.0,
        label_noise=estimate_label_noise(pos, neg),
        selection=selection,
        curves=LossCurves(curves.scores[::64], curves.positive[::64], curves.negative[::64]),
        summary=summary(pos, neg).to_dict(),
    )


BLOBS = {kind: scorer(kind).to_blobs() for kind in SPECS}

DESCRIPTIONS = {kind: json.loads(blobs["model.json"]) for kind, blobs in BLOBS.items()}

ARRAYS = {kind: safetensors.numpy.load(blobs["model.safetensors"]) for kind, blobs in BLOBS.items()}

ROWS = np.random.default_rng(1).normal(size=(5, FEATURES)).astype(np.float32)


def write(folder: Path, blobs: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, blob in blobs.items():
        (folder / name).write_bytes(blob)
    return folder


def use(loaded: BSPAUCModel) -> None:
    """All that a model is asked for, which must not fail in any way that is not ours."""
    scores = loaded.score_numpy(ROWS)
    assert np.isfinite(scores).all()
    assert np.isfinite(loaded.score_numpy(sparse.csr_matrix(ROWS))).all()
    label = np.arange(len(scores)) % 2 == 0
    found = loaded.scorer
    assert np.isfinite(found.label_noise.probability(scores)).all()
    assert np.isfinite(found.label_noise.suspicion(scores, label)).all()
    found.curves.losses(scores, label)
    found.selection.positive_weights(scores)
    assert len(loaded.summary.history) == len(loaded.summary.rounds)
    found.to_blobs()


def keys(path: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


def safe(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ENTRY = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}

FILE_TABLE = {
    "empty json": ("model.json", b""),
    "no utf-8": ("model.json", b'{"version": "\xff"}'),
    "deep json": ("model.json", DEEP.encode()),
    "deep objects": ("model.json", b'{"a":' * 100_000),
    "a number of 10,000 digits": ("model.json", b'{"formatVersion": ' + b"9" * 10_000 + b"}"),
    "a pickle as json": ("model.json", pickle.dumps({"formatVersion": 1})),
    "json of a list": ("model.json", b"[1, 2]"),
    "json of text": ("model.json", b'"formatVersion"'),
    "empty weights": ("model.safetensors", b""),
    "weights of a pickle": ("model.safetensors", pickle.dumps({"theta": [1.0]})),
    "a header of 2**63 bytes": ("model.safetensors", safe({}, length=2**63)),
    "a header beyond the file": ("model.safetensors", safe({}, length=10_000)),
    "a header that is a list": ("model.safetensors", safe([])),
    "a deep header": ("model.safetensors", safe(DEEP.encode())),
    "an array beyond the file": ("model.safetensors", safe({"theta.first.weight": ENTRY}, b"\0" * 64)),
    "offsets that fall": ("model.safetensors", safe({"a": {**ENTRY, "data_offsets": [64, 0]}}, b"\0" * 64)),
    "a shape beyond its bytes": ("model.safetensors", safe({"a": {**ENTRY, "data_offsets": [0, 64]}}, b"\0" * 64)),
    "nothing of a giant shape": (
        "model.safetensors",
        safe({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
    ),
    "a type that numpy lacks": (
        "model.safetensors",
        safe({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"\0\0"),
    ),
    "a negative shape": (
        "model.safetensors",
        safe({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    ),
}

STEPS: list[dict[str, Any]] = [
    {"kind": "impute", "input": "amount", "output": "filled", "value": 2.0, "missing": None},
    {"kind": "index", "input": "city", "output": "place", "labels": ["Rome", "Bonn"], "invalid": "keep"},
    {"kind": "one_hot", "input": "place", "output": "hot", "size": 19, "drop_last": False, "invalid": "error"},
    {"kind": "assemble", "inputs": ["filled", "hot"], "output": "raw", "invalid": "error"},
    {"kind": "scale", "input": "raw", "output": "features", **dict.fromkeys(("shift", "factor", "offset"), [1.0] * 20)},
]

PLAN: dict[str, Any] = {
    "steps": STEPS,
    "features": "features",
    "positive_label": 1.0,
    "threshold": 0.5,
    "inputs": {"amount": "number", "city": "text"},
}

BOMB = [{"kind": "assemble", "inputs": ["amount"], "output": "0", "invalid": "error"}]

BOMB += [{"kind": "assemble", "inputs": [str(n)] * 2, "output": str(n + 1), "invalid": "error"} for n in range(60)]
