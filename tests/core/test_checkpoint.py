"""A fit that is cut off between rounds and begun again ends with the same bits, or says why it cannot go on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bspauc_spark import algorithm
from bspauc_spark.errors import CheckpointError
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.loop.monitor import Outcome
from bspauc_spark.results.history import Round
from bspauc_spark.rows.storage import DiskFolder
from bspauc_spark.selection.pace import AutomaticPace, EveryRow, ExplicitPace, FractionPace, Pace
from tests.helpers.teams import workers

ROUNDS = 6
PACES: dict[str, Callable[[], Pace]] = {
    "automatic": lambda: AutomaticPace(None, ROUNDS, 1.0),
    "fraction": lambda: FractionPace(0.5, 0.9, ROUNDS, 1.0),
    "geometric, first λ found in round 1": lambda: ExplicitPace(None, 50.0, ROUNDS, 1.3, 0.5, 0.5),
    "not self-paced": EveryRow,
}


class Cut(Exception):
    """The driver dies here."""


def fit(folder: Path | None, pace: Pace, cut_after: int = 0, identity: Any = None, **options: Any) -> Any:
    def on_round(row: Round) -> None:
        if row.round == cut_after:
            raise Cut

    checkpoints = (
        None if folder is None else Checkpoints(DiskFolder(folder), identity or {"learningRate": 0.1, "data": "abc"})
    )
    settings = {name: options.pop(name) for name in ("validation", "network", "tau") if name in options}
    team = workers(learning_rate=options.pop("learning_rate", 0.01), **settings)
    return algorithm.fit(team, pace, ROUNDS, tau=0.001, on_round=on_round, checkpoints=checkpoints, **options)


def without_seconds(rows: list[Round]) -> list[dict[str, Any]]:
    plain = ({k: v for k, v in dataclasses.asdict(row).items() if not k.endswith("seconds")} for row in rows)
    return [{k: None if v != v else v for k, v in row.items()} for row in plain]


def assert_same(found: Outcome, wanted: Outcome) -> None:
    assert without_seconds(found.history) == without_seconds(wanted.history)
    assert found.best_round == wanted.best_round
    assert found.selection == wanted.selection
    assert found.weights.keys() == wanted.weights.keys()
    assert all(np.array_equal(found.weights[name], w) for name, w in wanted.weights.items())
    assert found.scores is not None
    assert wanted.scores is not None
    assert np.array_equal(found.scores.positive.sorted, wanted.scores.positive.sorted)
    assert np.array_equal(found.scores.negative.sorted, wanted.scores.negative.sorted)


@pytest.mark.parametrize("cut", [1, 4, ROUNDS])
@pytest.mark.parametrize("name", PACES)
def test_a_fit_that_was_cut_off_ends_as_if_it_had_not_been(name: str, cut: int, tmp_path: Path) -> None:
    wanted = fit(None, PACES[name]())
    with pytest.raises(Cut):
        fit(tmp_path, PACES[name](), cut)
    assert_same(fit(tmp_path, PACES[name]()), wanted)


@pytest.mark.parametrize("cut", [1, 4])
@pytest.mark.parametrize("name", ["automatic", "fraction"])
def test_a_table_that_was_cut_off_ends_as_if_it_had_not_been(name: str, cut: int, tmp_path: Path) -> None:
    options = {"network": "table", "tau": -1.0, "validation": True}
    wanted = fit(None, PACES[name](), **options)
    with pytest.raises(Cut):
        fit(tmp_path, PACES[name](), cut, **options)
    assert_same(fit(tmp_path, PACES[name](), **options), wanted)


def test_the_best_round_before_the_cut_is_kept_with_its_scores(tmp_path: Path) -> None:
    options = {"validation": True, "learning_rate": 0.08}
    wanted = fit(None, EveryRow(), **options)
    assert wanted.best_round < ROUNDS, "choose settings whose best round is not the last one"
    with pytest.raises(Cut):
        fit(tmp_path, EveryRow(), wanted.best_round + 1, **options)
    assert_same(fit(tmp_path, EveryRow(), **options), wanted)


def test_patience_that_had_run_out_before_the_cut_trains_no_further_round(tmp_path: Path) -> None:
    options = {"validation": True, "learning_rate": 0.05, "patience": 1}
    wanted = fit(None, EveryRow(), **options)
    assert len(wanted.history) < ROUNDS
    with pytest.raises(Cut):
        fit(tmp_path, EveryRow(), len(wanted.history), **options)
    assert_same(fit(tmp_path, EveryRow(), **options), wanted)


def test_ensure_descent_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    wanted = fit(None, PACES["automatic"](), ensure_descent=True, learning_rate=0.2)
    assert any(row.learning_rate_factor < 1 for row in wanted.history)
    with pytest.raises(Cut):
        fit(tmp_path, PACES["automatic"](), 3, ensure_descent=True, learning_rate=0.2)
    assert_same(fit(tmp_path, PACES["automatic"](), ensure_descent=True, learning_rate=0.2), wanted)


def test_it_says_where_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Cut):
        fit(tmp_path, EveryRow(), 2)
    with caplog.at_level(logging.WARNING, logger="bspauc_spark"):
        fit(tmp_path, EveryRow())
    assert "going on after round 2" in caplog.text


def test_only_the_last_two_rounds_are_on_disk_and_none_after_remove(tmp_path: Path) -> None:
    checkpoints = Checkpoints(DiskFolder(tmp_path), {})
    algorithm.fit(workers(), EveryRow(), ROUNDS, tau=0.0, checkpoints=checkpoints)
    names = sorted(path.name for path in tmp_path.iterdir())
    # A killed driver may have left one half written.
    (tmp_path / "bspauc-round-00004.checkpoint.1a2b.part").touch()
    assert names == ["bspauc-round-00005.checkpoint", "bspauc-round-00006.checkpoint"]
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_with_room_for_two_checkpoints_is_room_enough(
    mounted: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Cut):
        fit(tmp_path / "measured", EveryRow(), ROUNDS)
    size = max(path.stat().st_size for path in (tmp_path / "measured").iterdir())
    disk = mounted(f"size={int(2.6 * size)}")
    with pytest.raises(Cut):
        fit(disk, EveryRow(), ROUNDS)
    assert sorted(path.name for path in disk.iterdir()) == [
        "bspauc-round-00005.checkpoint",
        "bspauc-round-00006.checkpoint",
    ]
    assert "was not saved" not in caplog.text


def test_a_damaged_last_checkpoint_costs_one_round_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = fit(None, PACES["automatic"]())
    with pytest.raises(Cut):
        fit(tmp_path, PACES["automatic"](), 4)
    last = tmp_path / "bspauc-round-00004.checkpoint"
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    with pytest.raises(Cut):
        fit(tmp_path, PACES["automatic"](), 5)
    assert f"{last} is damaged" in caplog.text
    assert len(list(tmp_path.iterdir())) == 2
    assert_same(fit(tmp_path, PACES["automatic"]()), wanted)


def test_when_every_checkpoint_is_damaged_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bspauc-round-00003.checkpoint").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"bspauc-round-00003\.checkpoint is damaged.*Remove it"):
        fit(tmp_path, EveryRow())


def test_other_params_or_data_are_refused_and_the_difference_named(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        fit(tmp_path, EveryRow(), 2)
    with pytest.raises(CheckpointError, match=r"belongs to another fit: learningRate was 0\.1 and is 0\.2\. Fit with"):
        fit(tmp_path, EveryRow(), identity={"learningRate": 0.2, "data": "abc"})
    with pytest.raises(CheckpointError, match=r"data was 'abc' and is 'abd'"):
        fit(tmp_path, EveryRow(), identity={"learningRate": 0.1, "data": "abd"})
    with pytest.raises(CheckpointError, match=r"mu was None and is 0\.5"):
        fit(tmp_path, EveryRow(), identity={"learningRate": 0.1, "data": "abc", "mu": 0.5})


def test_a_round_that_cannot_be_saved_is_reported_and_the_fit_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, logger="bspauc_spark"):
        outcome = fit(blocked / "folder", EveryRow())
    assert len(outcome.history) == ROUNDS
    assert "round 3 was not saved in checkpointDir" in caplog.text


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.checkpoint").write_text("keep")
    checkpoints = Checkpoints(DiskFolder(tmp_path), {})
    algorithm.fit(workers(), EveryRow(), 2, tau=0.0, checkpoints=checkpoints)
    checkpoints.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.checkpoint"]
