"""The Kalman filter of SORT and DeepSORT for many boxes at once. Source: Wojke, Bewley and Paulus 2017, section 2.1.

A box is observed as (x, y, a, h): its centre, its aspect ratio width / height, and its height. The state has these four and
their velocities per frame period. In the published model nothing couples one of the four with another: the motion model joins
a value with its own velocity alone and all noise is independent. So the 8 x 8 covariance is four 2 x 2 blocks at all times, and
only these are kept: the numbers are the published ones, without a matrix to factorise, and thus without one that can fail to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 0.95 quantile of the chi-square distribution with 2 and 4 degrees of freedom.
CHI2_95 = {2: 5.9915, 4: 9.4877}

# Standard deviations of x, y, a, h: the first as a fraction of the height, the second absolute.
_WEIGHT = np.array([1.0, 1.0, 0.0, 1.0])
_STD_POSITION = 1 / 20
_STD_VELOCITY = 1 / 160


@dataclass(frozen=True, slots=True)
class BoxStates:
    """The states of T boxes.

    Attributes:
        mean: (T, 2, 4) float64, the values (x, y, a, h) and their velocities per frame period.
        cov: (T, 3, 4) float64, for each of the four: variance of the value, covariance of value and velocity, variance of
            the velocity.
    """

    mean: NDArray[np.float64]
    cov: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, rows: Any) -> BoxStates:
        """The rows of a mask, an index array or a slice."""
        return BoxStates(self.mean[rows], self.cov[rows])

    def covariance(self) -> NDArray[np.float64]:
        """The full covariance, (T, 8, 8), in the order x, y, a, h, vx, vy, va, vh."""
        full = np.zeros((len(self), 8, 8))
        k = np.arange(4)
        full[:, k, k] = self.cov[:, 0]
        full[:, k, k + 4] = full[:, k + 4, k] = self.cov[:, 1]
        full[:, k + 4, k + 4] = self.cov[:, 2]
        return full

    def xyxy(self) -> NDArray[np.float64]:
        """The boxes, (T, 4): left, top, right, bottom."""
        x, y, a, h = self.mean[:, 0].T
        w = a * h
        return np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)


def empty() -> BoxStates:
    """No boxes."""
    return BoxStates(np.zeros((0, 2, 4)), np.zeros((0, 3, 4)))


def concatenate(first: BoxStates, second: BoxStates) -> BoxStates:
    """The boxes of both, in this order."""
    return BoxStates(np.concatenate([first.mean, second.mean]), np.concatenate([first.cov, second.cov]))


def to_xyah(xyxy: NDArray[np.floating]) -> NDArray[np.float64]:
    """Boxes (N, 4) as left, top, right, bottom to (N, 4) centre, aspect ratio, height; widths and heights are positive."""
    left, top, right, bottom = np.asarray(xyxy, np.float64).T
    height = bottom - top
    return np.stack([(left + right) / 2, (top + bottom) / 2, (right - left) / height, height], axis=1)


def initiate(xyah: NDArray[np.float64]) -> BoxStates:
    """New states of boxes seen once, (N, 4): at rest, the velocities uncertain."""
    height = xyah[:, 3]
    cov = np.zeros((len(xyah), 3, 4))
    cov[:, 0] = _variance(height, 2 * _STD_POSITION, 1e-2)
    cov[:, 2] = _variance(height, 10 * _STD_VELOCITY, 1e-5)
    return BoxStates(np.stack([xyah, np.zeros_like(xyah)], axis=1), cov)


def predict(states: BoxStates, steps: float = 1.0) -> BoxStates:
    """The states a number of frame periods later.

    A whole number gives what as many published steps of one period give at constant height: their noise adds up to steps
    times the noise of one, and what a step adds to the velocity moves the box in each step after it. The closed sums
    1 + ... + (k - 1) and 1 + ... + (k - 1)^2 are taken for fractions of a period too.
    """
    height = states.mean[:, 0, 3]
    q_value = _variance(height, _STD_POSITION, 1e-2)
    q_velocity = _variance(height, _STD_VELOCITY, 1e-5)
    first_sum = steps * (steps - 1) / 2
    second_sum = steps * (steps - 1) * (2 * steps - 1) / 6
    value, both, velocity = states.cov[:, 0], states.cov[:, 1], states.cov[:, 2]
    mean, cov = states.mean.copy(), np.empty_like(states.cov)
    mean[:, 0] += steps * states.mean[:, 1]
    cov[:, 0] = value + 2 * steps * both + steps**2 * velocity + steps * q_value + second_sum * q_velocity
    cov[:, 1] = both + steps * velocity + first_sum * q_velocity
    cov[:, 2] = velocity + steps * q_velocity
    return BoxStates(mean, cov)


def correct(states: BoxStates, xyah: NDArray[np.float64]) -> BoxStates:
    """The states after seeing the boxes (T, 4), row by row."""
    noise = _observation_noise(states)
    value, both, velocity = states.cov[:, 0], states.cov[:, 1], states.cov[:, 2]
    spread = value + noise
    surprise = xyah - states.mean[:, 0]
    mean, cov = np.empty_like(states.mean), np.empty_like(states.cov)
    mean[:, 0] = states.mean[:, 0] + value / spread * surprise
    mean[:, 1] = states.mean[:, 1] + both / spread * surprise
    # value - value^2 / spread, written so that rounding cannot make it negative; likewise the next.
    cov[:, 0] = value * (noise / spread)
    cov[:, 1] = both * (noise / spread)
    cov[:, 2] = velocity - both**2 / spread
    return BoxStates(mean, cov)


def gating_distance(states: BoxStates, xyah: NDArray[np.float64], only_position: bool = False) -> NDArray[np.float64]:
    """Squared Mahalanobis distances (T, N) of boxes (N, 4) from the states, equation 1; over x and y alone if asked for."""
    dims = 2 if only_position else 4
    spread = (states.cov[:, 0] + _observation_noise(states))[:, None, :dims]
    surprise = xyah[None, :, :dims] - states.mean[:, 0][:, None, :dims]
    return np.asarray((surprise**2 / spread).sum(axis=2))


def rescale(states: BoxStates, x: float = 1.0, y: float = 1.0, period: float = 1.0) -> BoxStates:
    """The states in other units: pixels that are x and y times as many, and a frame period that is `period` times as long."""
    value = np.array([x, y, x / y, y])
    scale = np.stack([value, value * period])
    return BoxStates(states.mean * scale, states.cov * np.stack([scale[0] ** 2, scale[0] * scale[1], scale[1] ** 2]))


def _variance(height: NDArray[np.float64], weight: float, std_aspect: float) -> NDArray[np.float64]:
    std = np.multiply.outer(height * weight, _WEIGHT)
    std[:, 2] = std_aspect
    return np.asarray(std**2)


def _observation_noise(states: BoxStates) -> NDArray[np.float64]:
    return _variance(states.mean[:, 0, 3], _STD_POSITION, 1e-1)
