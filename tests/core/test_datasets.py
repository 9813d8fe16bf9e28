"""Data sets from small files of the right form, and the dealer against a count of hands."""

from __future__ import annotations

import bz2
import lzma
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from bspauc_spark.errors import InvalidDataError
from bspauc_spark.reproduction.datasets import NAMES, deal_poker, load, scale, split


def test_svmlight_files_are_joined_and_scaled(tmp_path: Path) -> None:
    with bz2.open(tmp_path / "cod-rna.bz2", "wt") as file:
        file.write("1 1:4 2:10 8:1\n-1 1:0 2:20 8:-3\n")
    with bz2.open(tmp_path / "cod-rna.t.bz2", "wt") as file:
        file.write("1 1:2 2:15\n")
    data = load("cod-rna", tmp_path)
    assert data.y.tolist() == [True, False, True]
    np.testing.assert_allclose(data.x[:, 0], [1, -1, 0])
    np.testing.assert_allclose(data.x[:, 1], [-1, 1, 0])
    # A feature that never changes has no range: it stays at the lower end.
    assert (data.x[:, 2] == -1).all()
    assert data.x.dtype == np.float32


def test_wide_sets_stay_sparse_and_one_class_is_positive(tmp_path: Path) -> None:
    for name, text in (("heldout", "5 3:2 55197:1\n"), ("test", "7 3:-4\n6 1:1\n")):
        with bz2.open(tmp_path / f"sector.{name}.bz2", "wt") as file:
            file.write(text)
    data = load("sector", tmp_path)
    assert sparse.issparse(data.x)
    assert data.x.shape == (3, 55_197)
    assert data.y.tolist() == [True, False, False]
    assert data.x[0, 2] == 0.5
    assert data.x[1, 2] == -1
    assert data.x.nnz == 4


def test_tables_have_their_class_in_the_last_column(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "skin_nonskin.txt.xz", "wt") as file:
        file.write("1\t2\t3\t1\n4\t5\t6\t2\n")
    data = load("skin_nonskin", tmp_path)
    assert data.y.tolist() == [True, False]
    assert data.x.tolist() == [[-1, -1, -1], [1, 1, 1]]


def test_numpy_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "http_adbench.npz", X=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 0]))
    assert load("http", tmp_path).y.tolist() == [False, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=rf"data set '{name}' needs .*\. Such a file is to be had from the"):
        load(name, tmp_path)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match="no data set 'iris'; known are a9a, skin_nonskin"):
        load("iris", tmp_path)


def test_scaling_reaches_both_ends() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 100, 0.01]
    scaled = scale(x)
    np.testing.assert_allclose(scaled.min(axis=0), -1, atol=1e-6)
    np.testing.assert_allclose(scaled.max(axis=0), 1, atol=1e-6)
    wide = scale(sparse.csr_matrix(x))
    np.testing.assert_allclose(abs(wide).max(axis=0).toarray(), 1, atol=1e-6)


def test_dealt_hands_are_five_different_cards_and_full_houses_as_rare_as_they_are() -> None:
    data = deal_poker(250_000, seed=2)
    suit, rank = (data.x[:, 0::2] + 1) * 1.5, (data.x[:, 1::2] + 1) * 6
    cards = np.rint(suit * 13 + rank).astype(int)
    assert cards.min() == 0
    assert cards.max() == 51
    assert (np.diff(np.sort(cards, axis=1), axis=1) > 0).all()
    # 3,744 of 2,598,960 hands; five standard deviations.
    chance = 3744 / 2_598_960
    assert abs(data.y.mean() - chance) < 5 * np.sqrt(chance / len(data))
    for hand, positive in zip(rank[:3000].round().astype(int), data.y[:3000], strict=True):
        counts = sorted(np.bincount(hand, minlength=13).tolist())
        assert positive == (counts[-2:] == [2, 3])
    assert np.array_equal(data.x[:100], deal_poker(100_001, seed=2).x[:100])


def test_every_pair_of_ranks_can_make_a_full_house() -> None:
    data = deal_poker(300_000, seed=1)
    ranks = np.rint((data.x[data.y][:, 1::2] + 1) * 6).astype(int)
    pairs = {tuple(sorted(set(hand.tolist()))) for hand in ranks}
    assert pairs == set(combinations(range(13), 2))


def test_a_split_is_stratified_and_seeded() -> None:
    data = deal_poker(60_000)
    train, test = split(data, seed=4)
    again, _ = split(data, seed=4)
    assert (len(train), len(test)) == (45_000, 15_000)
    assert abs(train.y.sum() - 3 * test.y.sum()) <= 3
    assert np.array_equal(train.x, again.x)
