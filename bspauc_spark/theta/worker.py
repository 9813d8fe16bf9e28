"""One θ worker: holds rows and θ, scores its rows, and trains θ on pairs of selected ones (Algorithm 2)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark import liveness
from bspauc_spark.arrays import Float32Array, IntArray
from bspauc_spark.errors import DivergedError, MalformedError
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Batch, Rows, concat, to_device
from bspauc_spark.selection import Selection
from bspauc_spark.statistics import OrderedScores, pair_sum
from bspauc_spark.statistics.binned import Bins, Contents, Histogram, ordered
from bspauc_spark.theta.block import BlockReport, KeptScores
from bspauc_spark.theta.device import place_rows
from bspauc_spark.theta.find_inputs import find_inputs, used_columns
from bspauc_spark.theta.group import Alone, Group
from bspauc_spark.theta.honest import Judges, refuse_bad
from bspauc_spark.theta.inputs import DenseInputs
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.mixing import MixedNetwork
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.pairs import EXPLOSION, member_losses, refuse_explosion
from bspauc_spark.theta.sample import in_sample
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.scoring import score_rows
from bspauc_spark.theta.state import State, check_state, with_draws
from bspauc_spark.theta.theta import Theta, copies

# Draws are made for this many steps at a time: enough to forget their cost, little enough to hold in memory.
_STEPS_PER_DRAW = 64


class Worker:
    """θ, its optimizer and average, the rows of both classes, and the scores of the last pass.

    Alone it is all of the ``Workers`` that the loop sees. One of a ``group`` holds its share of the rows, in rank
    order, and the same θ as the others; what it gives is then complete on rank 0.
    """

    def __init__(
        self, rows: Mapping[str, Rows], spec: NetworkSpec, settings: TrainingSettings, group: Group | None = None
    ) -> None:
        self._prepare(rows, settings, group)
        seeds = np.random.SeedSequence(settings.seed).generate_state(4, np.uint64).tolist()
        init, draw, self._sample, scales = seeds
        self._generator = torch.Generator().manual_seed(draw >> 1)
        inputs = find_inputs(rows, self.group, scales) if spec.inputs == "auto" else None
        dense = spec.kind == "kernel" or isinstance(inputs, DenseInputs)
        columns = None if dense else used_columns(rows, self.group)
        self.theta = Theta(spec, settings, columns, init >> 1, inputs)
        self._judges = Judges.of(rows, spec, self.group)
        self._start()

    def _prepare(self, rows: Mapping[str, Rows], settings: TrainingSettings, group: Group | None) -> None:
        self.rows = place_rows(rows, torch.device(settings.device)) if settings.on_gpu else dict(rows)
        self.settings = settings
        self.group = Alone() if group is None else group

    def _start(self) -> None:
        self._scores: dict[str, Float32Array] | None = None
        self.score_seconds = 0.0
        """What the last pass took."""
        self._before_block: tuple[State, dict[str, Float32Array]] | None = None
        self._weights: dict[str, Float32Array] = {}

    def close(self) -> None:
        """Let go of the rows: NFS keeps a file, and with it the folder, as long as it is mapped."""
        self.rows.clear()

    def score(self) -> Scores:
        """Ordered scores of all rows."""
        own = self.scores()
        return Scores.of(self.statistics(), lambda kind, bins: Contents.of(own[kind], bins), self.score_seconds)

    def scores(self) -> dict[str, Float32Array]:
        """Scores of own rows under the averaged θ, in the rows' order; the last pass is reused.

        With members they are honest: by the member that did not learn from the row.
        """
        if self._scores is None:
            start = time.perf_counter()
            average, threads = self.theta.average, self.settings.threads
            if self._judges is not None:
                assert isinstance(average, MixedNetwork)
                scores = self._judges.score(average, self.rows, self.group, threads)
            else:
                scores = {name: score_rows(average, rows, threads) for name, rows in self.rows.items()}
                refuse_bad(scores, average, self.group)
            self._scores, self.score_seconds = scores, time.perf_counter() - start
        return self._scores

    def statistics(self) -> dict[str, Float32Array | Histogram]:
        """On rank 0 the scores of all ranks' rows, or their histogram where a class is too large; elsewhere none."""
        return {name: self._gather(scores) for name, scores in self.scores().items()}

    def contents(self, name: str, bins: Bins) -> Contents:
        """On rank 0 what all ranks' scores of this kind have in these bins; elsewhere nothing."""
        return Contents.merge([Contents(*self.group.gather(Contents.of(self.scores()[name], bins)))])

    def _gather(self, scores: Float32Array) -> Float32Array | Histogram:
        if int(self.group.counts(len(scores)).sum()) <= self.settings.exact_rows:
            (every,) = self.group.gather([scores])
            return every
        return Histogram.merge([Histogram(*self.group.gather(Histogram.of(scores)))])

    def penalty(self) -> float:
        """``Ω(θ)`` of the averaged θ."""
        with torch.no_grad():
            return float(self.theta.average.penalty())

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a random share of both classes with weight 1; taken back before it raises ``DivergedError``."""
        if not self.settings.pretrain_steps:
            return
        share = self.settings.pretrain_fraction
        weights, pairs = {}, 1
        for number, name in enumerate((POSITIVES, NEGATIVES)):
            own = len(self.rows[name])
            start, total = self._offset(own)
            # A rare class keeps enough rows to stand for itself.
            wanted = min(total, max(round(share * total), self.settings.batch_size))
            weights[name] = in_sample(start, own, total, wanted, self._sample + number).astype(np.float32)
            pairs *= wanted
        before, self._weights = self.state(), weights
        try:
            self._run(weights, self.settings.pretrain_steps, rate)
            self._refuse_explosion(before, pairs)
        except DivergedError:
            self._return_to(before)
            raise

    def _refuse_explosion(self, before: State, pairs: int) -> None:
        def loss() -> float:
            learned = self._learned_loss()
            return self._kept_pair_sum() / pairs if learned is None else learned

        end = loss()
        if not self.group.counts(int(end > EXPLOSION)).any():
            return
        # Features may be so large that it was so from the start; only now is that worth a scoring pass.
        trained = self.state()
        self._return_to(before)
        start = loss()
        self.load(trained)
        start, end = np.frombuffer(self.group.share(np.array([start, end]).tobytes()))
        refuse_explosion(start, end)

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """The θ block, and what it gave. A block that diverges is taken back before it raises ``DivergedError``."""
        self._weigh(selection)
        before = self._learned_loss()
        try:
            self.descend(selection, rate)
            self.scores()
        except DivergedError:
            self.undo()
            raise
        after = self._learned_loss()
        learned = None if before is None or after is None else (before, after)
        pair_sum = self._kept_pair_sum(selection.phi_positive, selection.phi_negative)
        return BlockReport(pair_sum, self.penalty(), learned)

    def descend(self, selection: Selection, rate: float = 1.0) -> float:
        """Train θ on pairs of rows that ``selection`` keeps; returns the mean pair loss over the steps.

        ``rate`` scales the learning rate of this block. ``undo`` takes the block back.
        """
        self._weigh(selection)
        self._before_block = self.state(), self.scores()
        return self._run(self._weights, self.settings.steps, rate)

    def _weigh(self, selection: Selection) -> None:
        scores = self.scores()
        self._weights = {
            POSITIVES: selection.positive_weights(scores[POSITIVES]).astype(np.float32),
            NEGATIVES: selection.negative_weights(scores[NEGATIVES]).astype(np.float32),
        }

    def _learned_loss(self) -> float | None:
        """On rank 0 the mean pair loss of the members on rows that they learn from; None without members."""
        if self._judges is None:
            return None
        assert isinstance(self.theta.average, Members)
        return self._judges.loss(self.theta.average, self.rows, self._weights, self.group)

    def _kept_pair_sum(self, phi_positive: float = 1.0, phi_negative: float = 1.0) -> float:
        """On rank 0 ``Σ v_i u_j ξ_ij`` over the rows trained on, where ``φ`` weighs those at a threshold; else 0."""
        own = self.kept()

        def weighted(name: str, phi: float) -> list[tuple[float, OrderedScores]]:
            parts = ((1.0, self._gather(own[name].full)), (phi, self._gather(own[name].partial)))
            return [(weight, ordered(part)) for weight, part in parts if _size(part)]

        positives, negatives = weighted(POSITIVES, phi_positive), weighted(NEGATIVES, phi_negative)
        return sum(v * u * pair_sum(s, r) for v, s in positives for u, r in negatives)

    def kept(self) -> dict[str, KeptScores]:
        """New scores of own rows the last block was trained on."""
        scores = self.scores()
        return {
            name: KeptScores(scores[name][weights == 1], scores[name][(weights > 0) & (weights < 1)])
            for name, weights in self._weights.items()
        }

    def undo(self) -> None:
        """Go back to the state before the last block; draws go on, so that a repeated block sees other pairs."""
        assert self._before_block is not None
        before, scores = self._before_block
        self._return_to(before)
        self._scores = scores

    def _return_to(self, before: State) -> None:
        self.load(with_draws(before, self._generator.get_state().numpy()))

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of the averaged θ, by name."""
        return copies(self.theta.average.state_dict())

    def state(self) -> State:
        """All that the next block depends on, beside the rows, as arrays by name; the same on every rank."""
        return {**self.theta.state(), "generator": self._generator.get_state().numpy()}

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave; ``MalformedError`` if it cannot have been this worker's."""
        optimized = self.theta.parameters if self.settings.optimizer != "sgd" else []
        check_state(state, self.theta.tensors(), optimized, self._generator)
        self.theta.load(state)
        try:
            self._generator.set_state(torch.from_numpy(state["generator"].copy()))
        except RuntimeError as error:
            raise MalformedError("state.generator is no state of a random generator") from error
        self._scores = None

    def _run(self, weights: Mapping[str, Float32Array], steps: int, rate: float) -> float:
        """Algorithm 2: ``steps`` updates of θ on pairs drawn uniformly from rows of positive weight."""
        self.theta.begin(rate, steps)
        total = torch.zeros((), device=self._device)
        for positives, negatives, v, u in self._batches(weights, steps):  # 1 to 3
            total += self._step(positives, negatives, v, u)  # 4 and 5
            liveness.beat()
        self.theta.settle(self.group)
        self._scores = None
        mean = float(total) / max(1, steps)
        if not np.isfinite(mean) or not self.theta.is_finite() or self.theta.overflows():
            raise DivergedError(
                f"The θ block diverged: mean pair loss {mean} over {steps} steps at learningRate "
                f"{self.settings.learning_rate * rate:g}. {self._remedy(rate)}"
            )
        return mean

    def _step(self, positives: IntArray, negatives: IntArray, v: Tensor, u: Tensor) -> Tensor:
        """One step of Algorithm 2 on these rows of both classes with their weights; the mean pair loss before it.

        Every rank computes the scores of those rows of the batch that it holds. The loss is that of the whole batch,
        so pairs join rows of different ranks; each rank sends back the gradient that is due to its own rows, and
        their sum is the gradient that one process would get. Members share the batch, and each has weights of its own.
        """
        settings, theta, device = self.settings, self.theta, self._device
        own_places = torch.from_numpy(np.flatnonzero(np.concatenate((positives, negatives)) >= 0)).to(device)
        own_positives, own_negatives = positives[positives >= 0], negatives[negatives >= 0]
        batches = self._batch(own_positives, own_negatives)
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.mixed_precision):
            own = torch.zeros(0, theta.columns).to(device)
            if len(own_places):
                own = theta.scores(batches).float()
        scores = self.group.join(own.detach(), own_places, 2 * settings.batch_size).requires_grad_()
        loss = member_losses(settings.pairing, scores[: settings.batch_size], scores[settings.batch_size :], v, u)
        (due,) = torch.autograd.grad(loss.sum(), scores)
        theta.optimizer.zero_grad(set_to_none=True)
        if len(own_places):
            torch.autograd.backward(own, due[own_places])
        learned: Tensor | None = None
        if self._judges is not None:
            both = ((POSITIVES, own_positives), (NEGATIVES, own_negatives))
            learned = torch.from_numpy(np.concatenate([self._judges.learned(*one) for one in both])).to(device)
        theta.step(batches, learned, self.group)
        return loss.detach().mean()

    def _batches(
        self, weights: Mapping[str, Float32Array], steps: int
    ) -> Iterator[tuple[IntArray, IntArray, Tensor, Tensor]]:
        """Rows of each step's batch and their weights: −1 in the places of rows that other ranks hold.

        Every rank draws the same numbers. A row has a weight for each member, 0 for the one that judges it.
        """
        kept = {name: np.flatnonzero(weights[name]) for name in (POSITIVES, NEGATIVES)}
        for done in range(0, steps, _STEPS_PER_DRAW):
            count = min(_STEPS_PER_DRAW, steps - done)
            positives = self._draw(kept[POSITIVES], count)
            negatives = self._draw(kept[NEGATIVES], count)
            v = self._drawn_weights(POSITIVES, weights, positives)
            u = self._drawn_weights(NEGATIVES, weights, negatives)
            yield from zip(positives, negatives, v, u, strict=True)

    def _remedy(self, rate: float) -> str:
        if self.theta.is_finite() and self.theta.overflows():
            return "Squares of gradients are beyond float32: scale the features to [-1, 1]."
        shrunk = self.settings.learning_rate * rate * self.settings.tau
        if self.settings.optimizer != "adam" and shrunk > 2.0:
            return (
                f"Lower learningRate or regParam: in each step θ loses their product, {shrunk:g}, times itself, and "
                "more than 2 makes it grow."
            )
        return "Lower learningRate, or scale the features to [-1, 1]."

    def _offset(self, own: int) -> tuple[int, int]:
        """Of ``own`` members here: where the first one stands among all ranks' members, and how many all are."""
        counts = self.group.counts(own)
        return int(counts[: self.group.rank].sum()), int(counts.sum())

    def _draw(self, kept: IntArray, steps: int) -> IntArray:
        """Rows of each step's batch, −1 in the places of rows that other ranks hold; the same draw for any group."""
        start, total = self._offset(len(kept))
        drawn = torch.randint(total, (steps, self.settings.batch_size), generator=self._generator).numpy()
        rows = np.full(drawn.shape, -1, dtype=np.int64)
        own = (drawn >= start) & (drawn < start + len(kept))
        rows[own] = kept[drawn[own] - start]
        return rows

    def _drawn_weights(self, kind: str, weights: Mapping[str, Float32Array], rows: IntArray) -> Tensor:
        """Weights of the drawn rows of all ranks, for each member."""
        places = np.flatnonzero(rows >= 0)
        index = rows.ravel()[places]
        own = weights[kind][index, None]
        if self._judges is not None:
            own = own * self._judges.learned(kind, index)
        joined = self.group.join(torch.from_numpy(own), torch.from_numpy(places), rows.size)
        return joined.view(*rows.shape, own.shape[1]).to(self._device)

    def _batch(self, positives: IntArray, negatives: IntArray) -> list[Batch]:
        rows = (self.rows[POSITIVES].take(positives), self.rows[NEGATIVES].take(negatives))
        return self.theta.look_up(concat(*(to_device(some, self._device) for some in rows)))

    @property
    def _device(self) -> torch.device:
        return torch.device(self.settings.device)


def _size(part: Float32Array | Histogram) -> int:
    return len(part.bins) if isinstance(part, Histogram) else len(part)
