"""One θ worker: holds rows and θ, scores its rows, and trains θ on pairs of selected ones (Algorithm 2)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark.errors import DivergedError
from bspauc_spark.selection import Selection
from bspauc_spark.shards import NEGATIVES, POSITIVES
from bspauc_spark.workers.networks import NetworkSpec, ScoringNetwork, score_rows
from bspauc_spark.workers.pairs import PAIRINGS
from bspauc_spark.workers.rows import Rows, concat

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Draws are made for this many steps at a time: enough to forget their cost, little enough to hold in memory.
_STEPS_PER_DRAW = 64


@dataclass(frozen=True)
class TrainingSettings:
    """How a θ block is trained; the names are those of the Params."""

    optimizer: str
    learning_rate: float
    batch_size: int
    steps: int
    tau: float
    pairing: str
    averaging: float
    seed: int
    pretrain_steps: int = 0
    pretrain_fraction: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True)
class KeptScores:
    """New scores of the rows a θ block was trained on, by the weight they had: 1, or the threshold's ``φ``."""

    full: FloatArray
    partial: FloatArray


class Worker:
    """θ, its optimizer and average, the rows of both classes, and the scores of the last pass."""

    def __init__(self, rows: Mapping[str, Rows], spec: NetworkSpec, settings: TrainingSettings) -> None:
        self.rows = dict(rows)
        self.settings = settings
        init, draw = np.random.SeedSequence(settings.seed).generate_state(2, np.uint64)
        self._generator = torch.Generator().manual_seed(int(draw) >> 1)
        self.network = ScoringNetwork(spec, torch.Generator().manual_seed(int(init) >> 1))
        self.network.to(torch.device(settings.device))
        self.average = copy.deepcopy(self.network) if settings.averaging > 0 else self.network
        self._optimizer = _optimizer(self.network, settings)
        self._steps_done = 0
        self._scores: dict[str, FloatArray] | None = None
        self._before_block: dict[str, Any] | None = None
        self._weights: dict[str, FloatArray] = {}

    def scores(self) -> dict[str, FloatArray]:
        """Scores of all rows under the averaged θ, in the rows' order; the last pass is reused."""
        if self._scores is None:
            self._scores = {name: score_rows(self.average, rows) for name, rows in self.rows.items()}
        return self._scores

    def penalty(self) -> float:
        """``Ω(θ)`` of the averaged θ."""
        with torch.no_grad():
            return float(self.average.penalty())

    def pretrain(self) -> float:
        """Train on a small random share of both classes, all of it with weight 1; returns the mean pair loss."""
        share = self.settings.pretrain_fraction
        weights = {}
        for name in (POSITIVES, NEGATIVES):
            count = len(self.rows[name])
            # A rare class keeps enough rows to stand for itself.
            wanted = min(count, max(round(share * count), self.settings.batch_size))
            chosen = torch.randperm(count, generator=self._generator)[:wanted].numpy()
            weights[name] = np.zeros(count, dtype=np.float32)
            weights[name][chosen] = 1
        return self._run(weights, self.settings.pretrain_steps, rate=1.0)

    def train(self, selection: Selection, rate: float = 1.0) -> float:
        """Train θ on pairs of rows that ``selection`` keeps; returns the mean pair loss over the steps.

        ``rate`` scales the learning rate of this block. ``undo`` takes the block back.
        """
        scores = self.scores()
        self._weights = {
            POSITIVES: selection.positive_weights(scores[POSITIVES]).astype(np.float32),
            NEGATIVES: selection.negative_weights(scores[NEGATIVES]).astype(np.float32),
        }
        self._before_block = {**self.state(), "scores": scores}
        return self._run(self._weights, self.settings.steps, rate)

    def kept(self) -> dict[str, KeptScores]:
        """New scores of the rows the last block was trained on."""
        scores = self.scores()
        return {
            name: KeptScores(scores[name][weights == 1], scores[name][(weights > 0) & (weights < 1)])
            for name, weights in self._weights.items()
        }

    def undo(self) -> None:
        """Go back to the state before the last block; draws go on, so that a repeated block sees other pairs."""
        assert self._before_block is not None
        before = dict(self._before_block)
        scores = before.pop("scores")
        self.load_state({**before, "generator": self._generator.get_state()})
        self._scores = scores

    def state(self) -> dict[str, Any]:
        """All that the next block depends on, beside the rows."""
        return {
            "network": copy.deepcopy(self.network.state_dict()),
            "average": copy.deepcopy(self.average.state_dict()),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "generator": self._generator.get_state(),
            "steps_done": self._steps_done,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Return to a state that ``state`` gave."""
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._generator.set_state(state["generator"])
        self._steps_done = int(state["steps_done"])
        self._scores = None

    def _run(self, weights: Mapping[str, FloatArray], steps: int, rate: float) -> float:
        """``steps`` updates of θ on pairs drawn uniformly from rows of positive weight."""
        settings = self.settings
        device = torch.device(settings.device)
        loss_of = PAIRINGS[settings.pairing]
        kept = {name: np.flatnonzero(weights[name]) for name in (POSITIVES, NEGATIVES)}
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate

        total = torch.zeros((), device=device)
        for done in range(0, steps, _STEPS_PER_DRAW):
            count = min(_STEPS_PER_DRAW, steps - done)
            positives = self._draw(kept[POSITIVES], count)
            negatives = self._draw(kept[NEGATIVES], count)
            for p, q in zip(positives, negatives, strict=True):
                batch = concat(self.rows[POSITIVES].take(p), self.rows[NEGATIVES].take(q)).to(device)
                v = torch.from_numpy(weights[POSITIVES][p]).to(device)
                u = torch.from_numpy(weights[NEGATIVES][q]).to(device)
                scores = self.network(batch)
                loss = loss_of(scores[: len(p)], scores[len(p) :], v, u)
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                self._update_average()
                total += loss.detach()
        self._scores = None
        mean = float(total) / max(1, steps)
        if not np.isfinite(mean) or not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            raise DivergedError(
                f"The θ block diverged: mean pair loss {mean} over {steps} steps at learningRate "
                f"{settings.learning_rate * rate:g}. Lower learningRate, or scale the features to [-1, 1]."
            )
        return mean

    def _draw(self, kept: IntArray, steps: int) -> IntArray:
        drawn = torch.randint(len(kept), (steps, self.settings.batch_size), generator=self._generator)
        rows: IntArray = kept[drawn.numpy()]
        return rows

    @torch.no_grad()
    def _update_average(self) -> None:
        self._steps_done += 1
        if self.average is self.network:
            return
        # A shorter memory at first, so that the initial θ does not linger in the average.
        decay = min(self.settings.averaging, (1 + self._steps_done) / (10 + self._steps_done))
        averages: list[Tensor] = list(self.average.parameters())
        torch._foreach_lerp_(averages, list(self.network.parameters()), 1 - decay)


def _optimizer(network: ScoringNetwork, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Algorithm 2's ``(1 − ητ)θ − η·gradient`` for ``"sgd"``; Adam with τΩ in the gradient, or decoupled."""
    parameters, rate, tau = network.parameters(), settings.learning_rate, settings.tau
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, weight_decay=tau)
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=tau, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=tau, fused=True)
