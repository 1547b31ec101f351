"""The Kalman filter against the published equations written out with full matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from pyasc.plugins import kalman

Array = NDArray[np.float64]


class PublishedFilter:
    """One box, the textbook filter with 8 x 8 matrices and the noise of the paper's program, one step at a time."""

    def __init__(self, z: Array) -> None:
        h = z[3]
        self.x = np.r_[z, np.zeros(4)]
        self.p = np.diag([h / 10, h / 10, 1e-2, h / 10, h / 16, h / 16, 1e-5, h / 16]) ** 2
        self.f = np.eye(8) + np.eye(8, k=4)
        self.observe = np.eye(4, 8)

    def noise(self) -> Array:
        h = self.x[3]
        return np.diag([h / 20, h / 20, 1e-1, h / 20]) ** 2

    def predict(self) -> None:
        h = self.x[3]
        q = np.diag([h / 20, h / 20, 1e-2, h / 20, h / 160, h / 160, 1e-5, h / 160]) ** 2
        self.x = self.f @ self.x
        self.p = self.f @ self.p @ self.f.T + q

    def innovation(self) -> Array:
        return self.observe @ self.p @ self.observe.T + self.noise()

    def correct(self, z: Array) -> None:
        gain = self.p @ self.observe.T @ np.linalg.inv(self.innovation())
        self.x = self.x + gain @ (z - self.observe @ self.x)
        self.p = (np.eye(8) - gain @ self.observe) @ self.p

    def distance(self, z: Array, dims: int) -> float:
        d = (z - self.observe @ self.x)[:dims]
        return float(d @ np.linalg.inv(self.innovation()[:dims, :dims]) @ d)


def random_boxes(seed: int, count: int) -> Array:
    random = np.random.default_rng(seed)
    return np.c_[random.uniform(0, 1000, (count, 2)), random.uniform(0.2, 3, count), random.uniform(20, 400, count)]


def test_is_the_published_filter_for_every_box_at_once() -> None:
    random = np.random.default_rng(4)
    boxes = random_boxes(3, 6)
    ours, theirs = kalman.initiate(boxes), [PublishedFilter(z) for z in boxes]
    for frame in range(40):
        ours = kalman.predict(ours)
        for one in theirs:
            one.predict()
        boxes = boxes + random.normal(0, [4, 4, 0.02, 3], boxes.shape)
        for dims in (2, 4):
            expected = [[one.distance(z, dims) for z in boxes] for one in theirs]
            np.testing.assert_allclose(kalman.gating_distance(ours, boxes, dims == 2), expected, rtol=1e-9)
        if frame % 5:
            ours = kalman.correct(ours, boxes)
            for one, z in zip(theirs, boxes, strict=True):
                one.correct(z)
        np.testing.assert_allclose(ours.mean.reshape(-1, 8), [one.x for one in theirs], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours.covariance(), [one.p for one in theirs], rtol=1e-7, atol=1e-12)


def test_gate_is_the_chi_square_quantile() -> None:
    for dims, value in kalman.CHI2_95.items():
        assert value == pytest.approx(stats.chi2.ppf(0.95, dims), abs=1e-4)


def test_several_periods_at_once_are_as_many_published_steps() -> None:
    boxes = random_boxes(1, 5)
    start = kalman.correct(kalman.predict(kalman.initiate(boxes)), boxes + np.array([3, -2, 0, 0]))
    start.mean[:, 1, 3] = 0  # the noise follows the height: equal at constant height
    one_by_one = start
    for _ in range(7):
        one_by_one = kalman.predict(one_by_one)
    at_once = kalman.predict(start, 7)
    np.testing.assert_allclose(at_once.mean, one_by_one.mean, rtol=1e-12)
    np.testing.assert_allclose(at_once.cov, one_by_one.cov, rtol=1e-12)


@given(st.floats(0.05, 20), st.floats(0.05, 20))
def test_a_time_may_be_passed_in_any_parts(first: float, second: float) -> None:
    start = kalman.initiate(random_boxes(2, 3))
    parts, whole = kalman.predict(kalman.predict(start, first), second), kalman.predict(start, first + second)
    np.testing.assert_allclose(parts.cov, whole.cov, rtol=1e-6, atol=1e-12)


@given(st.lists(st.tuples(st.floats(0.01, 30), st.booleans()), max_size=30), st.floats(1, 1e6))
def test_covariance_stays_one(steps: list[tuple[float, bool]], height: float) -> None:
    box = np.array([[5.0, 5.0, 0.5, height]])
    states = kalman.initiate(box)
    for step, seen in steps:
        states = kalman.predict(states, step)
        states = kalman.correct(states, box) if seen else states
    full = states.covariance()[0]
    scale = np.sqrt(np.diag(full))
    assert (scale > 0).all()
    assert np.linalg.eigvalsh(full / np.outer(scale, scale)).min() > -1e-9


def test_other_pixels_and_other_periods_are_the_same_world() -> None:
    boxes = random_boxes(8, 4)
    moved = boxes + np.array([6, 3, 0, 0])

    def track(boxes: Array, moved: Array, steps: float) -> kalman.BoxStates:
        return kalman.predict(kalman.correct(kalman.predict(kalman.initiate(boxes), 1), moved), steps)

    scale = np.array([0.5, 0.5, 1, 0.5])
    rescaled = kalman.rescale(track(boxes, moved, 3), x=0.5, y=0.5)
    direct = track(boxes * scale, moved * scale, 3)
    np.testing.assert_allclose(rescaled.mean, direct.mean, rtol=1e-12)
    np.testing.assert_allclose(rescaled.cov, direct.cov, rtol=1e-12)
    stretched = kalman.rescale(track(boxes, moved, 3), x=2.0, y=1.0)
    np.testing.assert_allclose(stretched.xyxy(), track(boxes, moved, 3).xyxy() * [2, 1, 2, 1], rtol=1e-12)
    slow = kalman.rescale(track(boxes, moved, 3), period=4)
    unit = np.diag([1, 1, 1, 1, 4, 4, 4, 4])
    np.testing.assert_allclose(slow.covariance(), unit @ track(boxes, moved, 3).covariance() @ unit, rtol=1e-12)
    np.testing.assert_allclose(kalman.predict(slow, 1).mean[:, 0], kalman.predict(track(boxes, moved, 3), 4).mean[:, 0])


def test_boxes_convert_there_and_back() -> None:
    xyxy = np.array([[10, 20, 30, 80], [-5, -5, 5, 0]], np.float32)
    np.testing.assert_allclose(kalman.to_xyah(xyxy), [[20, 50, 1 / 3, 60], [0, -2.5, 2, 5]], rtol=1e-6)
    np.testing.assert_allclose(kalman.initiate(kalman.to_xyah(xyxy)).xyxy(), xyxy, rtol=1e-6)
