"""Small data, the Params of fits that end soon, and what two fits are compared by."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest

from bspauc_spark import BSPAUCModel
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.cluster.mailbox import Message
from tests.helpers.processes import wait_until_at_work


def noisy_moons(rows: int = 3000, features: int = 6, flipped: float = 0.1, seed: int = 0) -> pd.DataFrame:
    """A rare class beyond a curved boundary, with some labels flipped; ``clean`` is the true label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features))
    clean = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 1.6).astype(float)
    label = np.where(rng.random(rows) < flipped, 1 - clean, clean)
    columns = {f"x{i}": x[:, i] for i in range(features)}
    return pd.DataFrame({**columns, "label": label, "clean": clean, "validation": rng.random(rows) < 0.25})


FAST = {
    "network": "mlp",
    "rounds": 3,
    "stepsPerRound": 15,
    "pretrainSteps": 10,
    "hiddenLayers": [16, 16],
    "batchSize": 64,
    "verbose": False,
}

# Rounds long enough to meet a worker in the middle of one.
SLOW = {**FAST, "stepsPerRound": 150}


def same_bits(one: BSPAUCModel, other: BSPAUCModel) -> bool:
    a, b = one.scorer.weights, other.scorer.weights
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@contextlib.contextmanager
def while_training(block: int, act: Callable[[], None]) -> Iterator[None]:
    """In here ``act`` is done once, when the ranks below this process are at work on the ``block``-th θ block."""
    asked, acted = list[str](), threading.Event()
    ask = Launch.ask

    def run() -> None:
        wait_until_at_work(os.getpid())
        act()
        acted.set()

    def seen(self: Launch, command: Message) -> Message:
        asked.append(command.word)
        if command.word == "train" and asked.count("train") == block:
            threading.Thread(target=run, daemon=True).start()
        return ask(self, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "ask", seen)
        yield
    assert acted.wait(5)


def digest(arrays: dict) -> str:
    joined = b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(joined).hexdigest()
