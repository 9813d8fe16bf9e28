"""Small data, the Params of fits that end soon, and what two fits are compared by."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from bspauc_spark import BSPAUCModel


def noisy_moons(rows: int = 3000, features: int = 6, flipped: float = 0.1, seed: int = 0) -> pd.DataFrame:
    """A rare class beyond a curved boundary, with some labels flipped; ``clean`` is the true label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features))
    clean = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 1.6).astype(float)
    label = np.where(rng.random(rows) < flipped, 1 - clean, clean)
    columns = {f"x{i}": x[:, i] for i in range(features)}
    return pd.DataFrame({**columns, "label": label, "clean": clean, "validation": rng.random(rows) < 0.25})


FAST = {
    "rounds": 3,
    "stepsPerRound": 15,
    "pretrainSteps": 10,
    "hiddenLayers": [16, 16],
    "batchSize": 64,
    "verbose": False,
}

SLOW = {**FAST, "stepsPerRound": 150}


def same_bits(one: BSPAUCModel, other: BSPAUCModel) -> bool:
    a, b = one.scorer.weights, other.scorer.weights
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def while_fitting(round_done: int, act: Callable[[], None]) -> Callable[[], None]:
    """Run ``act`` in a thread, a moment into the round after ``round_done``; returns what waits for it."""
    reached, done = threading.Event(), threading.Event()

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith(f"round {round_done}/"):
                reached.set()

    def run() -> None:
        assert reached.wait(120)
        time.sleep(0.4)
        act()
        done.set()

    logger, listener = logging.getLogger("bspauc_spark"), Listen()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    threading.Thread(target=run, daemon=True).start()

    def finish() -> None:
        logger.removeHandler(listener)
        logger.setLevel(level)
        assert done.wait(5)

    return finish


def digest(arrays: dict) -> str:
    joined = b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(joined).hexdigest()
