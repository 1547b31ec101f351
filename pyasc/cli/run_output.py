"""Where `pyasc run` shows its pictures: an annotated video file, a window."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click
import cv2

from pyasc.errors import PyascError, StreamError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

# Codecs that every build of OpenCV can write, by the file's suffix.
CODECS = {".mp4": "mp4v", ".mov": "mp4v", ".mkv": "mp4v", ".avi": "MJPG"}
_DEFAULT_FPS = 25.0
_WINDOW = "pyasc"
_OPEN_WINDOW = f"import cv2; cv2.namedWindow({_WINDOW!r})"
_DISPLAY_TIMEOUT_S = 20.0


def check_output(output: Path, sources: Iterable[str]) -> None:
    """Refuse to write a video in the place of one that is read.

    Raises:
        UsageError: it is one of the sources.
    """
    from pyasc.agent.sources import parse_source

    for source in sources:
        with contextlib.suppress(StreamError, OSError):  # what is not there cannot be overwritten
            if output.samefile(parse_source(source).address):
                raise click.UsageError(f"--output: {output} is the source itself")


class VideoFile:
    """A video file that appears under its name when it is complete; an interrupted run's is complete up to there.

    Args:
        path: to write; its suffix, one of `CODECS`, chooses the container.

    Attributes:
        fps: frames a second that it plays with, 0.0 for 25; what is set after the first picture has no effect.
        frames: pictures in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames = 0
        self.fps = 0.0
        self._part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
        self._writer: Any = None
        self._size = (0, 0)

    def write(self, image: NDArray[np.uint8]) -> None:
        """Add a picture; one of another size than the first is scaled to it, for a file has one size only.

        Raises:
            StreamError: the file cannot be written.
        """
        if self._writer is None:
            self._size = image.shape[1], image.shape[0]
            code = cv2.VideoWriter_fourcc(*CODECS[self.path.suffix.lower()])
            fps = self.fps if self.fps > 0 else _DEFAULT_FPS
            self._writer = cv2.VideoWriter(str(self._part), cv2.CAP_FFMPEG, code, fps, self._size)
            if not self._writer.isOpened():
                raise StreamError(f"{self.path}: cannot be written")
        if (image.shape[1], image.shape[0]) != self._size:
            image = cv2.resize(image, self._size, interpolation=cv2.INTER_AREA)
        self._writer.write(image)
        self.frames += 1

    def __enter__(self) -> Self:
        if not self.path.parent.is_dir():
            raise StreamError(f"{self.path}: there is no folder {self.path.parent}")
        if self.path.is_dir():
            raise StreamError(f"{self.path}: is a folder")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        self._writer.release()
        if self._is_whole():
            self._part.replace(self.path)
            return
        self._part.unlink(missing_ok=True)
        if error is None:
            raise StreamError(f"{self.path}: could not be written to its end (is the disk full?)")

    def _is_whole(self) -> bool:
        """Whether the pictures can be read back: OpenCV tells nothing of a write that failed, such as on a full disk.

        The index is written last. Of containers that store no number of frames it is an estimate from duration and rate.
        """
        if not self.frames:
            return False
        capture = cv2.VideoCapture(str(self._part), cv2.CAP_FFMPEG)
        count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        capture.release()
        return bool(count > 0.9 * self.frames)


class Window:
    """A window on the desktop.

    Raises:
        PyascError: this machine or this OpenCV has none; says what to do.
    """

    def __enter__(self) -> Self:
        display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if not display:
            raise PyascError("--show: there is no display (DISPLAY is not set); use --output video.mp4 instead")
        # Qt of OpenCV's wheels complains of fonts that it is not given and that are not needed.
        os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")
        try:
            # First in a process of its own: where Qt cannot use the display it aborts the process.
            tried = subprocess.run(
                [sys.executable, "-c", _OPEN_WINDOW], capture_output=True, text=True, timeout=_DISPLAY_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise PyascError(f"--show: the display {display} does not answer; use --output video.mp4 instead") from None
        if "not implemented" in tried.stderr:
            raise PyascError(
                "--show: this OpenCV is built without windows; replace it by `pip uninstall opencv-python-headless` and "
                "`pip install opencv-python`, or use --output video.mp4"
            )
        if tried.returncode != 0:
            raise PyascError(f"--show: the display {display} cannot be used; use --output video.mp4 instead")
        cv2.namedWindow(_WINDOW, cv2.WINDOW_NORMAL)
        return self

    def show(self, image: NDArray[np.uint8]) -> bool:
        """Show a picture; False when the user has closed the window or pressed q or Escape."""
        cv2.imshow(_WINDOW, image)
        return self.keep()

    def keep(self) -> bool:
        """Let the window react to its user where there is no new picture; False when they have closed it, as for `show`."""
        key = cv2.waitKey(1) & 0xFF
        return key not in (ord("q"), 27) and cv2.getWindowProperty(_WINDOW, cv2.WND_PROP_VISIBLE) >= 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cv2.destroyAllWindows()
