"""Assignment against SciPy's, the cascade's order, overlap and the appearance memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from pyasc.plugins.association import assign, cascade, iou
from pyasc.plugins.gallery import Gallery, cosine_distances, unit_vectors

LIMIT = 0.7
costs = st.one_of(st.floats(0, 2), st.just(np.inf), st.just(np.nan))
shapes = st.tuples(st.integers(0, 9), st.integers(0, 9))


def check_against_scipy(cost: NDArray[np.float64]) -> None:
    rows, columns = assign(cost, LIMIT)
    made = cost[rows, columns]
    assert (made <= LIMIT).all()
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == len(rows)
    # The published rule: what is over the limit costs a little more than the limit, and is thrown away after the assignment.
    bounded = np.where(cost <= LIMIT, cost, LIMIT + 1e-5)
    best = bounded[linear_sum_assignment(bounded)].sum()
    total = made.sum() + (min(cost.shape) - len(made)) * (LIMIT + 1e-5)
    assert total == pytest.approx(best, abs=1e-9)


@given(hnp.arrays(np.float64, shapes, elements=costs))
def test_assignment_saves_as_much_as_scipy(cost: NDArray[np.float64]) -> None:
    check_against_scipy(cost)


@pytest.mark.parametrize("seed", range(30))
def test_crowded_assignment_saves_as_much_as_scipy(seed: int) -> None:
    """Several tracks want the same few detections, so that some must take none."""
    random = np.random.default_rng(seed)
    cost = random.uniform(0, 2, random.integers(3, 15, 2))
    cost[random.random(cost.shape) < 0.3] = np.inf
    check_against_scipy(cost)


def test_large_assignment_is_that_of_scipy() -> None:
    cost = np.random.default_rng(0).random((300, 200))
    rows, columns = assign(cost, 1.0)
    expected = linear_sum_assignment(cost)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(columns, expected[1])


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_assign(shape: tuple[int, int]) -> None:
    rows, columns = assign(np.zeros(shape), LIMIT)
    assert (len(rows), len(columns)) == (0, 0)
    rows, columns = cascade(np.zeros(shape), LIMIT, np.ones(shape[0], np.int64))
    assert (len(rows), len(columns)) == (0, 0)


def test_all_forbidden() -> None:
    rows, _ = assign(np.full((3, 3), np.inf), LIMIT)
    assert len(rows) == 0


def test_who_was_seen_last_chooses_first() -> None:
    # Track 0 fits both detections better, but has been away for longer.
    cost = np.array([[0.1, 0.6], [0.2, 0.9]])
    rows, columns = cascade(cost, LIMIT, np.array([5, 1]))
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {1: 0, 0: 1}
    rows, columns = cascade(cost, LIMIT, np.array([1, 5]))
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0}


def test_overlap_of_known_boxes() -> None:
    box = np.array([[0.0, 0.0, 10.0, 10.0]])
    others = np.array(
        [[0, 0, 10, 10], [5, 0, 15, 10], [0, 0, 5, 5], [20, 20, 30, 30], [3, 3, 3, 9], [9, 9, 1, 1]], float
    )
    np.testing.assert_allclose(iou(box, others), [[1, 1 / 3, 1 / 4, 0, 0, 0]])
    assert iou(box, np.empty((0, 4))).shape == (1, 0)
    assert iou(others[4:], others[4:]).tolist() == [[0, 0], [0, 0]]


def test_gallery_keeps_the_last_and_no_more() -> None:
    gallery = Gallery(5)
    axes = np.eye(9, dtype=np.float32)
    assert np.isinf(gallery.distance(axes)).all()
    for axis in axes:
        gallery.add(axis)
        assert len(gallery) <= 5
    np.testing.assert_array_equal(gallery.distance(axes), [1, 1, 1, 1, 0, 0, 0, 0, 0])


def test_gallery_copies_what_it_is_given() -> None:
    gallery, vector = Gallery(3), np.array([1, 0], np.float32)
    gallery.add(vector)
    vector[:] = [0, 1]
    np.testing.assert_array_equal(gallery.distance(np.array([[1, 0]], np.float32)), [0])


def test_distances_are_those_of_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    samples = [unit_vectors(random.normal(size=(n, 16)))[0] for n in (1, 7, 12)]
    galleries = [Gallery(8) for _ in samples]
    for gallery, vectors in zip(galleries, samples, strict=True):
        for vector in vectors:
            gallery.add(vector)
    probes, _ = unit_vectors(random.normal(size=(6, 16)))
    wanted = random.random((3, 6)) < 0.6
    expected = np.full((3, 6), np.inf)
    for t, n in zip(*np.nonzero(wanted), strict=True):
        expected[t, n] = min(1 - float(s @ probes[n]) for s in samples[t][-8:])
    np.testing.assert_allclose(cosine_distances(galleries, probes, wanted), expected, atol=1e-6)


def test_vectors_without_direction_are_found() -> None:
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 1], [1e300, 1e300], [-2, 0]])
    unit, known = unit_vectors(vectors)
    assert known.tolist() == [True, False, False, False, False, True]
    np.testing.assert_allclose(unit, [[0.6, 0.8], [0, 0], [0, 0], [0, 0], [0, 0], [-1, 0]], rtol=1e-6)
