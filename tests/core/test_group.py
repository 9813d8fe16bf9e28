"""Workers as one: two real gloo processes against one process and against plain torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows, Rows, SparseRows
from bspauc_spark.selection import Selection
from bspauc_spark.theta import find_inputs
from bspauc_spark.theta.group import Alone, Group, PeerLostError, TorchGroup
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker
from bspauc_spark.theta.workers import make_worker

SPEC = NetworkSpec("mlp", 5, (7, 6))
# Ranks are forked from a process that has imported what they need and done nothing: seconds less for each of them.
multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(130, 5)).astype(np.float32)
    x[:40, 0] += 0.8
    return {POSITIVES: x[:40], NEGATIVES: x[40:]}


def settings(**changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "batch_size": 8,
        "steps": 12,
        "tau": 0.01,
        "pairing": "all",
        "averaging": 0.9,
        "seed": 0,
        "pretrain_steps": 5,
        "pretrain_fraction": 0.5,
    }
    return TrainingSettings(**{**values, **changes})


def shares(cuts: dict[str, int], rank: int, sparse: bool = False) -> dict[str, Rows]:
    """Rank 0 holds the rows before the cut of each class, rank 1 the others."""
    held = {name: x[: cuts[name]] if rank == 0 else x[cuts[name] :] for name, x in data().items()}
    if not sparse:
        return {name: DenseRows([x], 5) for name, x in held.items()}
    pointers = {name: np.arange(len(x) + 1) * 5 for name, x in held.items()}
    return {
        name: SparseRows([(pointers[name], np.tile(np.arange(5, dtype=np.int32), len(x)), x.ravel())], 5)
        for name, x in held.items()
    }


CUTS = {
    "even": {POSITIVES: 20, NEGATIVES: 45},
    "uneven": {POSITIVES: 3, NEGATIVES: 71},
    "rank 1 without positives": {POSITIVES: 40, NEGATIVES: 45},
    "rank 0 without rows": {POSITIVES: 0, NEGATIVES: 0},
}


def _entry(rank: int, body: Callable[..., Any], folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    where = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2}
    with TorchGroup.connected(False, **where) as group:
        torch.save(body(group, *arguments), f"{folder}/{rank}.pt")


def _start(entry: Callable[..., None], *arguments: Any, join: bool = True, method: str = "forkserver") -> Any:
    """Two processes that run ``entry(rank, *arguments)``."""
    return mp.start_processes(entry, arguments, nprocs=2, join=join, start_method=method)


def in_two(body: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What ``body(group, *arguments)`` returns on each of two ranks."""
    _start(_entry, body, str(folder), arguments)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


EVERYTHING = Selection(-1e30, 1.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 0, True)


def selection_of(scores: dict[str, np.ndarray], kept: float = 0.6, phi: float = 0.3) -> Selection:
    tau = np.quantile(scores[POSITIVES], 1 - kept, method="nearest")
    upsilon = np.quantile(scores[NEGATIVES], kept, method="nearest")
    return Selection(float(tau), phi, float(upsilon), phi, 1.0, 1.0, kept, kept, 1, True)


def one_step_gradients(group: Group) -> dict[tuple[str, str], list[torch.Tensor]]:
    """For each pairing and each split of the rows the gradients of the first step, before the optimizer sees them."""
    return {(pairing, cut): _gradients(group, pairing, cut) for pairing in ("matched", "all") for cut in CUTS}


def _gradients(group: Group, pairing: str, cut: str) -> list[torch.Tensor]:
    rows = shares(CUTS[cut], group.rank, sparse=cut == "uneven")
    worker = Worker(rows, SPEC, settings(pairing=pairing, steps=1), group)
    seen: list[torch.Tensor] = []
    step = worker.theta.optimizer.step
    whole = worker.theta.parameters
    worker.theta.optimizer.step = lambda *_: seen.extend(p.grad.clone() for p in whole) or step()
    if not worker.theta.lazy:
        worker.descend(selection_of(one_process().scores()))
        return seen
    (lazy,) = worker.theta.lazy.values()
    move = lazy.step

    def spy(named: torch.Tensor, gradient: torch.Tensor) -> None:
        assert named.tolist() == list(range(5))
        seen.insert(0, gradient.clone())
        move(named, gradient)

    lazy.step = spy  # type: ignore[method-assign]
    worker.descend(selection_of(one_process().scores()))
    return seen


def one_process(spec: NetworkSpec = SPEC, **changes: Any) -> Worker:
    return make_worker({name: DenseRows([x], 5) for name, x in data().items()}, spec, settings(**changes))


def bare_gradients(pairing: str) -> list[torch.Tensor]:
    """The same batch through plain torch layers in float64: every row of it in one process, pairs as a table."""
    worker = one_process(pairing=pairing, steps=1)
    selection = selection_of(worker.scores())
    scores = worker.scores()
    v, u = selection.positive_weights(scores[POSITIVES]), selection.negative_weights(scores[NEGATIVES])
    draws = []
    draw = worker._draw
    worker._draw = lambda kept, steps: draws.append(draw(kept, steps)) or draws[-1]  # type: ignore[method-assign]
    plain = worker.theta.network.to_sequential().double()
    worker.descend(selection)
    p, q = draws[0][0], draws[1][0]
    s, r = (plain(torch.from_numpy(data()[name][rows]).double()) for name, rows in ((POSITIVES, p), (NEGATIVES, q)))
    v, u = torch.from_numpy(v[p]), torch.from_numpy(u[q])
    if pairing == "all":
        loss = (v[:, None] * u[None, :] * torch.relu(1 - s[:, None] + r[None, :])).mean()
    else:
        loss = (v * u * torch.relu(1 - s + r)).mean()
    gradients = torch.autograd.grad(loss, list(plain.parameters()))
    # The first layer keeps its weights transposed.
    return [gradients[0].T, *gradients[1:]]


def test_the_gradient_of_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    for found in in_two(one_step_gradients, tmp_path):
        assert len(found) == 2 * len(CUTS)
        for (pairing, cut), gradients in found.items():
            for a, b in zip(gradients, bare_gradients(pairing), strict=True):
                torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-6, msg=f"{pairing}, {cut}")


TABLE = NetworkSpec("table", 5, members=3, inputs="auto", gaps=True, landmarks=130)
NETWORKS: dict[str, tuple[NetworkSpec, dict[str, Any]]] = {
    "one network": (SPEC, {}),
    "members": (replace(SPEC, members=3), {}),
    "members for tables": (TABLE, {"tau": -1.0}),
    "a table with one decay": (TABLE, {"tau": 3.0}),
    "a table without folds": (replace(TABLE, members=0), {"tau": -1.0}),
}


def fitted(group: Group, name: str) -> dict[str, dict[str, Any]]:
    return {cut: _fitted(group, cut, *NETWORKS[name]) for cut in CUTS}


def _fitted(group: Group, cut: str, spec: NetworkSpec, changes: dict[str, Any]) -> dict[str, Any]:
    # Sparse rows in one case: each member has a first layer of its own.
    worker = make_worker(shares(CUTS[cut], group.rank, cut == "uneven"), spec, settings(**changes), group)
    first = worker.statistics()
    worker.pretrain()
    report = worker.train(EVERYTHING)
    return {"first": first, "state": worker.state(), "report": report, "scores": worker.statistics()}


@pytest.mark.parametrize("network", NETWORKS)
def test_two_ranks_draw_train_and_report_what_one_process_does(network: str, tmp_path: Path) -> None:
    spec, changes = NETWORKS[network]
    alone, members = one_process(spec, **changes), spec.members
    # Sums of more numbers are rounded, and a system of equations is solved from them.
    rounding = 10 if spec.kind == "table" else 1
    first = {name: np.sort(scores) for name, scores in alone.scores().items()}
    alone.pretrain()
    report = alone.train(EVERYTHING)
    on_ranks = in_two(fitted, tmp_path, network)
    for cut in CUTS:
        zero, one = (ranks[cut] for ranks in on_ranks)
        for name in (POSITIVES, NEGATIVES):
            np.testing.assert_allclose(np.sort(zero["first"][name]), first[name], rtol=1e-6 * (members > 0))
            assert len(one["first"][name]) == 0
            np.testing.assert_allclose(
                np.sort(zero["scores"][name]), np.sort(alone.scores()[name]), atol=1e-5 * rounding
            )
        assert zero["report"].pair_sum == pytest.approx(report.pair_sum, rel=1e-5 * rounding)
        assert zero["report"].penalty == pytest.approx(report.penalty, rel=1e-6 * rounding**3)
        assert zero["report"].learned == (report.learned and pytest.approx(report.learned, rel=1e-5))
        assert zero["state"].keys() == one["state"].keys()
        for name, array in zero["state"].items():
            assert np.array_equal(array, one["state"][name]), name
            same = (".inputs.", ".landmarks", ".widths")
            assert not any(part in name for part in same) or np.array_equal(array, alone.state()[name]), name
        # The same draws, so the generators stand at the same place.
        assert np.array_equal(zero["state"]["generator"], alone.state()["generator"])


def scales(group: Group) -> dict[str, torch.Tensor]:
    """Of a sample of dense rows with gaps, and of wide sparse rows, of which this rank has a share."""
    find_inputs._SAMPLE_ROWS = 50
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    x[:, 1], x[::3, 2] = x[:, 1] > 0, np.nan
    columns = np.sort(rng.integers(0, 300, (200, 3)).astype(np.int32) + np.array([0, 300, 600], np.int32))
    values = rng.normal(0, 1e4, (200, 3)).astype(np.float32)
    shares = {kind: np.array_split(np.arange(*ends), group.size)[group.rank] for kind, ends in ENDS.items()}
    dense: dict[str, Rows] = {kind: DenseRows([x[own]], 4) for kind, own in shares.items()}
    wide: dict[str, Rows] = {
        kind: SparseRows([(np.arange(len(own) + 1) * 3, columns[own].ravel(), values[own].ravel())], 2000)
        for kind, own in shares.items()
    }
    found = {"dense": find_inputs.find_inputs(dense, group, 3), "wide": find_inputs.find_inputs(wide, group, 3)}
    return {f"{form}.{name}": t for form, one in found.items() for name, t in one.state_dict().items()}


ENDS = {POSITIVES: (0, 70), NEGATIVES: (70, 200)}


def test_two_ranks_find_the_scales_that_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_inputs, "_SAMPLE_ROWS", 20_000)
    wanted = scales(Alone())
    assert len(wanted["wide.scaled"]) > 400
    assert wanted["dense.knots"].shape[1] == 64
    for found in in_two(scales, tmp_path):
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def diverging(group: Group, cuts: dict[str, int], pretraining: bool) -> tuple[str, bool]:
    slower: dict[str, Any] = {"learning_rate": 30.0, "pretrain_steps": 2, "averaging": 0.0} if pretraining else {}
    diverging = {"learning_rate": 1e12, "tau": 1.0, "steps": 60, **slower}
    worker = Worker(shares(cuts, group.rank), SPEC, settings(**diverging), group)
    before = worker.state()
    try:
        worker.pretrain() if pretraining else worker.train(EVERYTHING)
    except DivergedError as error:
        after = worker.state()
        same = all(np.array_equal(after[name], before[name]) for name in before if name != "generator")
        return str(error), same
    return "", False


@pytest.mark.parametrize(("pretraining", "says"), [(False, "mean pair loss nan"), (True, "raised the mean pair loss")])
def test_training_that_diverges_is_taken_back_on_every_rank(pretraining: bool, says: str, tmp_path: Path) -> None:
    for message, same in in_two(diverging, tmp_path, CUTS["even"], pretraining):
        assert says in message
        assert same


def _threads_after(rank: int, folder: str) -> None:
    _entry(rank, diverging, folder, (CUTS["even"], False))
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    Path(folder, f"threads-{rank}").write_text(" ".join(names))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
def test_no_thread_of_a_group_outlives_it(tmp_path: Path) -> None:
    # Ranks that have imported nothing yet, as a launch starts them.
    _start(_threads_after, str(tmp_path), method="spawn")
    for rank in (0, 1):
        assert "gloo" not in (tmp_path / f"threads-{rank}").read_text()


def odd_arrays(group: Group) -> list[np.ndarray]:
    own = [np.arange(3, dtype=np.float32) * (group.rank + 1), np.empty(0, np.float32), np.ones(group.rank, np.float32)]
    return group.gather(own)


def test_gather_joins_arrays_of_any_length_in_rank_order(tmp_path: Path) -> None:
    zero, one = in_two(odd_arrays, tmp_path)
    assert [array.tolist() for array in zero] == [[0, 1, 2, 0, 2, 4], [], [1]]
    assert [len(array) for array in one] == [0, 0, 0]
    alone = Alone().gather([np.arange(3, dtype=np.float32)])
    assert alone[0].tolist() == [0, 1, 2]


def shared(group: Group) -> list[bytes]:
    return [group.share(data if group.rank == 0 else b"?") for data in (b"from rank 0", b"")]


def test_share_hands_rank_0s_bytes_to_all(tmp_path: Path) -> None:
    assert in_two(shared, tmp_path) == [[b"from rank 0", b""]] * 2


def table_rows(group: Group) -> list[tuple[list[int], list[list[float]]]]:
    """Rows that both ranks have, that one has, that none has."""
    numbers = [([7, 2], [2, 9]), ([], [5]), ([], [])]
    found = []
    for own in numbers:
        named = torch.tensor(own[group.rank], dtype=torch.int32)
        rows = named.float()[:, None] * torch.tensor([1.0, 10.0]) + group.rank
        union, summed = group.sum_rows(named, rows)
        found.append((union.tolist(), summed.tolist()))
    return found


def test_rows_of_a_table_are_added_by_their_numbers(tmp_path: Path) -> None:
    wanted = [([2, 7, 9], [[5.0, 41.0], [7.0, 70.0], [10.0, 91.0]]), ([5], [[6.0, 51.0]]), ([], [])]
    assert in_two(table_rows, tmp_path) == [wanted] * 2


def without_values(group: Group) -> float:
    """Sparse rows of which none has a value other than zero."""
    empty = (np.zeros(4, dtype=np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    rows: dict[str, Rows] = {name: SparseRows([empty], 5) for name in (POSITIVES, NEGATIVES)}
    return Worker(rows, SPEC, settings(), group).descend(EVERYTHING)


def test_sparse_rows_without_any_value_are_no_failure(tmp_path: Path) -> None:
    assert in_two(without_values, tmp_path) == [pytest.approx(1.0)] * 2


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What rank 0 of two would send; the other one adds nothing."""
    tensors: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for collective in ("all_reduce", "broadcast", "gather"):
        monkeypatch.setattr(dist, collective, lambda tensor, *_, **__: tensors.append(tensor))
    return tensors


def test_gradients_are_summed_where_the_parameters_are_and_control_goes_by_the_cpu(sent: list[torch.Tensor]) -> None:
    group = TorchGroup()
    parameters = [torch.empty(3, 2, device="meta"), torch.empty(2, device="meta")]
    parameters[0].grad = torch.empty_like(parameters[0])
    group.sum_gradients(parameters)
    group.align(parameters)
    assert [(tensor.device.type, tensor.numel()) for tensor in sent] == [("meta", 8), ("meta", 6), ("meta", 2)]
    assert {p.grad.device.type for p in parameters if p.grad is not None} == {"meta"}
    sent.clear()
    group.counts(3)
    group.share(b"a command")
    group.gather([np.ones(4, np.float32)])
    assert len(sent) == 5
    assert {tensor.device.type for tensor in sent} == {"cpu"}


@pytest.mark.parametrize("places", [[], [5], [0, 2, 3, 7], list(range(8))], ids=len)
def test_scores_travel_in_a_buffer_of_one_length_however_many_a_rank_has(
    places: list[int], sent: list[torch.Tensor]
) -> None:
    own = torch.arange(1.0, len(places) + 1)
    joined = TorchGroup().join(own, torch.tensor(places, dtype=torch.int64), 8)
    assert [len(tensor) for tensor in sent] == [8]
    wanted = np.zeros(8, np.float32)
    wanted[places] = own.numpy()
    assert np.array_equal(joined.numpy(), wanted)


def orphan(group: Group) -> str:
    if group.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.counts(1)
    except PeerLostError as error:
        Path(sys.argv[-1]).write_text("lost")
        return str(error)
    return ""


def test_a_rank_learns_at_once_that_another_one_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, str(tmp_path / "seen")])
    started = time.monotonic()
    context = _start(_entry, orphan, str(tmp_path), (), join=False)
    with pytest.raises(mp.ProcessExitedException):
        context.join(30, grace_period=5)
    assert (tmp_path / "seen").read_text() == "lost"
    assert time.monotonic() - started < 60
