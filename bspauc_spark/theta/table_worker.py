"""The worker of ``network="table"``: its θ block is solved, not descended (``theta.ridge``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark import liveness
from bspauc_spark.arrays import Float32Array, FloatArray, IntArray
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Rows, SparseBatch, to_device
from bspauc_spark.schema import within
from bspauc_spark.selection import Selection
from bspauc_spark.theta import evidence
from bspauc_spark.theta.find_inputs import find_inputs
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.honest import Judges
from bspauc_spark.theta.inputs import as_dense
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.ridge import DECAYS, pair_scale, prior, solve, sums, whitening
from bspauc_spark.theta.sample import in_sample
from bspauc_spark.theta.state import State
from bspauc_spark.theta.table import TableNetwork, check_landmarks
from bspauc_spark.theta.theta import copies
from bspauc_spark.theta.worker import Worker

# Of each class, from which θ is solved and by which its candidates are weighed; all workers together.
_MOST_ROWS = 20_000
# The decay where nothing can be held back to choose one.
_WITHOUT_FOLDS = 3.0


def told_decay(tau: float, members: int) -> float | str:
    """The decay of a fit in words, where it is no number: below 0 it is to be chosen."""
    if tau >= 0:
        return tau
    return "by honest scores" if members else _WITHOUT_FOLDS


class TableTheta:
    """A θ that no optimizer moves: the network is all there is."""

    def __init__(self, network: TableNetwork) -> None:
        self.network = self.average = network
        self.parameters: list[Tensor] = []
        self.steps_done = 0

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of everything, as arrays by name."""
        return {**copies(self.tensors()), "steps_done": np.array(self.steps_done)}

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave, and that ``check_state`` has checked."""
        own = {name.removeprefix("average."): array for name, array in state.items() if name.startswith("average.")}
        with within("state.average"):
            check_landmarks(own["landmarks"], own["widths"])
        self.average.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in own.items()})
        self.steps_done = int(state["steps_done"])


@dataclass
class Sample:
    """The own rows from which θ is solved, positives first: their features, of each kind, and all that is fixed."""

    index: dict[str, IntArray]
    features: list[Tensor]
    labels: Tensor
    folds: Tensor
    learned: Tensor
    """False for witnesses, from which no member learns."""


@dataclass
class Candidates:
    """Heads for each kind of features and each decay: of each member its coefficients, and scores of the own sample."""

    heads: list[list[Tensor]]
    """By kind and member: (features + 1) × decays."""
    scores: Float32Array
    """Rows × candidates: of each row those by the member that did not learn from it."""


class TableWorker(Worker):
    """A worker whose θ is solved on a sample of the rows. All other rows are scored, and selected, as with any θ."""

    theta: TableTheta

    def __init__(
        self, rows: Mapping[str, Rows], spec: NetworkSpec, settings: TrainingSettings, group: Group | None = None
    ) -> None:
        self._prepare(rows, settings, group)
        seeds = np.random.SeedSequence(settings.seed).generate_state(4, np.uint64).tolist()
        _, draw, self._sample, scales = seeds
        self._generator = torch.Generator().manual_seed(draw >> 1)
        inputs = find_inputs(rows, self.group, scales)
        network = TableNetwork(spec, inputs)
        network.add_module("inputs", inputs)
        network.to(self._device)
        self._judges = Judges.of(rows, spec, self.group)
        self.theta = TableTheta(network)
        self._start()
        network.set_landmarks(self._landmarks(rows, network, draw))
        self._map()

    @torch.no_grad()
    def _map(self) -> None:
        """What turns nearness to landmarks into features whose products are the kernel: as rank 0 computes it.

        Of one matrix, two types of CPU may find different eigenvectors.
        """
        network = self.theta.network
        self.group.align([network.landmarks, network.widths])
        features = network.features(network.landmarks)
        self._maps = [self._of_first(whitening(one)) for one in features[1:]]
        self._centers = [one.mean(dim=0) for one in self._mapped(features)]
        self.group.align(self._centers)
        self._of_rows: Sample | None = None
        self._all: Candidates | None = None
        self._solved: Float32Array | None = None

    def _of_first(self, map_: Tensor) -> Tensor:
        """The one of rank 0, which may have another number of columns."""
        shared = np.frombuffer(self.group.share(map_.cpu().numpy().tobytes())).copy()
        return torch.from_numpy(shared).view(len(map_), -1).to(self._device)

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave; landmarks of other workers may differ by rounding."""
        network = self.theta.network
        before = network.landmarks.clone(), network.widths.clone()
        super().load(state)
        self._solved = None
        if not (torch.equal(before[0], network.landmarks) and torch.equal(before[1], network.widths)):
            self._map()

    def _landmarks(self, rows: Mapping[str, Rows], network: TableNetwork, seed: int) -> Tensor:
        """So many different rows, half of either class where there are enough; the same for any number of ranks."""
        own, every = [], network.spec.landmarks
        _, negatives = self._offset(len(rows[NEGATIVES]))
        for number, (kind, wanted) in enumerate(((POSITIVES, max(every // 2, every - negatives)), (NEGATIVES, every))):
            start, total = self._offset(len(rows[kind]))
            chosen = in_sample(start, len(rows[kind]), total, wanted, seed + number)
            own.append(self._inputs_of(rows[kind], np.flatnonzero(chosen)).cpu().numpy().ravel())
        gathered = self.group.gather(own)
        shape = network.landmarks.shape
        first = np.concatenate(gathered)[: shape.numel()] if self.group.rank == 0 else np.empty(0)
        return torch.from_numpy(np.frombuffer(self.group.share(first.tobytes()), np.float32).copy()).view(shape)

    def _inputs_of(self, rows: Rows, index: IntArray) -> Tensor:
        batch = rows.take(index)
        if isinstance(batch, SparseBatch):
            batch = as_dense(batch, rows.num_features)
        found: Tensor = self.theta.network.prepare(to_device(batch, self._device))  # type: ignore[assignment]
        return found

    def _mapped(self, features: Sequence[Tensor]) -> list[Tensor]:
        line, *near = features
        return [line * line.shape[1] ** -0.5, *(one @ map.float() for one, map in zip(near, self._maps, strict=True))]

    @torch.no_grad()
    def _sampled(self) -> Sample:
        """The sample, of which features are computed once for all rounds."""
        if self._of_rows is not None:
            return self._of_rows
        index, parts = dict[str, IntArray](), list[list[Tensor]]()
        for number, kind in enumerate((POSITIVES, NEGATIVES)):
            own = len(self.rows[kind])
            start, total = self._offset(own)
            index[kind] = np.flatnonzero(in_sample(start, own, total, _MOST_ROWS, self._sample + number))
            for first in range(0, len(index[kind]), CHUNK_ROWS):
                prepared = self._inputs_of(self.rows[kind], index[kind][first : first + CHUNK_ROWS])
                mapped = self._mapped(self.theta.network.features(prepared))
                parts.append([one - center for one, center in zip(mapped, self._centers, strict=True)])
                liveness.beat()
        folds = [np.zeros(len(one), np.uint8) for one in index.values()]
        learned = np.ones(sum(map(len, index.values())), dtype=bool)
        if self._judges is not None:
            folds = [self._judges.fold[kind][one] for kind, one in index.items()]
            learned[len(index[POSITIVES]) :] = ~self._judges.witness[index[NEGATIVES]]
        device = self._device
        labels = torch.cat([torch.ones(len(index[POSITIVES])), torch.zeros(len(index[NEGATIVES]))])
        empty = [center[None][:0] for center in self._centers]
        every = [torch.cat(one) for one in zip(empty, *parts, strict=True)]
        self._of_rows = Sample(
            index,
            every,
            labels.to(device),
            torch.from_numpy(np.concatenate(folds)).to(device),
            torch.from_numpy(learned).to(device),
        )
        return self._of_rows

    @property
    def _members(self) -> int:
        return max(1, self.theta.network.spec.members)

    @property
    def _decays(self) -> Sequence[float]:
        if self.settings.tau >= 0:
            return (self.settings.tau,)
        return DECAYS if self._judges is not None else (_WITHOUT_FOLDS,)

    def _candidates(self, weights: Float32Array) -> Candidates:
        """Solve all of them from rows of these weights."""
        sample, members = self._sampled(), self._members
        weighed_rows = torch.from_numpy(weights).to(self._device) * sample.learned.float()
        heads, scores = list[list[Tensor]](), list[Tensor]()
        for features in sample.features:
            own = sums(features, sample.labels, weighed_rows, sample.folds, members)
            every = self._summed(own)
            total = every.sum(dim=0)
            heads.append([])
            found = torch.zeros(len(features), len(self._decays), device=self._device)
            for member in range(members):
                outside = total - every[member] if self._judges is not None else total
                solved = self._shared(solve(outside, self._decays)).float()
                heads[-1].append(solved)
                rows = sample.folds == member
                found[rows] = torch.addmm(solved[-1], features[rows], solved[:-1])
                liveness.beat()
            scores.append(found)
        return Candidates(heads, torch.cat(scores, dim=1).cpu().numpy())

    def _summed(self, own: Tensor) -> Tensor:
        carrier = torch.empty_like(own)
        carrier.grad = own
        self.group.sum_gradients([carrier])
        assert carrier.grad is not None
        return carrier.grad

    def _shared(self, found: Tensor) -> Tensor:
        """As rank 0 has it: other types of CPU round differently."""
        self.group.align([found])
        return found

    def pretrain(self, rate: float = 1.0) -> None:
        """Solve θ on all rows."""
        self._weights = {kind: np.ones(len(self.rows[kind]), np.float32) for kind in (POSITIVES, NEGATIVES)}
        self._solve()

    def descend(self, selection: Selection, rate: float = 1.0) -> float:
        """Solve θ on the rows that ``selection`` keeps; ``undo`` takes it back."""
        self._weigh(selection)
        self._before_block = self.state(), self.scores()
        self._solve()
        return 0.0

    def _learned_loss(self) -> float | None:
        return None

    @torch.no_grad()
    def _solve(self) -> None:
        sample = self._sampled()
        weights = np.concatenate([self._weights[kind][index] for kind, index in sample.index.items()])
        same = self._solved is not None and np.array_equal(weights, self._solved)
        if bool(self.group.counts(int(not same)).sum() == 0):
            # Nothing is to be found that is not known, and the last scores stand.
            self.score_seconds = 0.0
            return
        self._solved = weights
        if self._all is None:
            self._all = self._candidates(np.ones_like(weights))
        left_out = int(self.group.counts(int((weights < 1).sum())).sum())
        candidates = [self._all, self._candidates(weights)] if left_out else [self._all]
        shares, verdict, deviations, line = self._judged(candidates, weights)
        if not shares.any():
            self.score_seconds = 0.0
            return
        network = self.theta.network
        network.coefficients.zero_()
        per_kind = len(self._decays)
        for number in np.flatnonzero(shares).tolist():
            which, place = divmod(number, per_kind * len(sample.features))
            kind, decay = divmod(place, per_kind)
            factor = line[0] * shares[number] / deviations[number]
            for member in range(self._members):
                self._add(kind, member, candidates[which].heads[kind][member][:, decay].double() * factor)
        network.coefficients[0] += line[1]
        self.group.align([network.coefficients.detach()])
        network.verdict.copy_(torch.from_numpy(verdict.copy()))
        self._scores = None

    def _add(self, kind: int, member: int, head: Tensor) -> None:
        """Add a head to a member: what is linear in mapped features is linear in the network's own."""
        network = self.theta.network
        own, constant = head[:-1], head[-1] - head[:-1] @ self._centers[kind].double()
        inputs, landmarks = network.landmarks.shape[1], len(network.landmarks)
        raw = own * inputs**-0.5 if kind == 0 else self._maps[kind - 1] @ own
        first = 1 if kind == 0 else 1 + inputs + (kind - 1) * landmarks
        network.coefficients[first : first + len(raw), member] += raw.float()
        network.coefficients[0, member] += constant.float()

    def _judged(
        self, candidates: Sequence[Candidates], weights: Float32Array
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The share of each candidate, the verdict on the selection, deviations, and the line to a margin of 1.

        No candidate has a share where θ is to stay: an earlier selection pays more.
        """
        sample, count = self._sampled(), sum(one.scores.shape[1] for one in candidates)
        positives = len(sample.index[POSITIVES])
        scores = np.concatenate([one.scores for one in candidates], axis=1)
        own = [scores[:positives], scores[positives:], weights[:positives], weights[positives:]]
        gathered = self.group.gather([np.ascontiguousarray(part).ravel() for part in own])
        found = np.zeros((3, count + 4))
        if self.group.rank == 0:
            s, r = (part.reshape(-1, count).T.astype(np.float64) for part in gathered[:2])
            v, u = (part.astype(np.float64) for part in gathered[2:])
            deviations = np.sqrt((s.var(axis=1) + r.var(axis=1) + (s.mean(axis=1) - r.mean(axis=1)) ** 2) / 2)
            deviations[deviations < 1e-9] = np.inf
            s, r = s / deviations[:, None], r / deviations[:, None]
            shares, verdict = self._chosen(s, r, count // len(candidates))
            if not shares[count // len(candidates) :].any():
                v, u = np.ones_like(v), np.ones_like(u)
            line = pair_scale(shares @ s, shares @ r, v, u)
            found = np.stack([np.append(shares, verdict), np.append(deviations, [*line, 0, 0])])
        every = np.frombuffer(self.group.share(found.tobytes())).reshape(-1, count + 4)
        return every[0, :count], every[0, count:], every[1, :count], every[1, count : count + 2]

    def _chosen(self, s: FloatArray, r: FloatArray, of_all: int) -> tuple[FloatArray, FloatArray]:
        """The share of each candidate by honest scores, and the verdict; the first ones learned from all rows."""
        if self._judges is None:
            # Nothing tells which one to believe.
            return np.where(np.arange(len(s)) >= len(s) - of_all, 1.0 / of_all, 0.0), np.zeros(4)
        kinds = [slice(0, of_all), slice(of_all, None)][: len(s) // of_all]
        usual = prior(self._decays, len(self._sampled().features))
        own = [evidence.shares(s[kind], r[kind], usual) for kind in kinds]
        none = np.zeros(of_all)
        if len(own) == 1:
            return own[0], np.zeros(4)
        before, (one, other) = self.theta.network.verdict.double().cpu().numpy(), zip(kinds, own, strict=True)
        verdict = evidence.verdict(*((share @ s[kind], share @ r[kind]) for kind, share in (one, other)))
        if evidence.pays(before) and not verdict[2] > before[2]:
            return np.zeros(len(s)), verdict
        if evidence.pays(verdict):
            return np.concatenate([none, own[1]]), verdict
        return np.concatenate([own[0], none]), verdict
