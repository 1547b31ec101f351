"""What the demo leaves behind: the annotated video and a contact sheet, drawn from the tracks that came over MQTT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyasc.errors import StreamError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHEET_COLUMNS, SHEET_ROWS = 3, 3
SHEET_TILE_WIDTH = 480
JPEG_QUALITY = 88


def write_annotated(
    clip: Path,
    tracks: Mapping[int, Sequence[Mapping[str, Any]]],
    moments: Sequence[int],
    zones: Mapping[str, Any],
    lines: Mapping[str, Any],
    video: Path,
    sheet: Path,
) -> int:
    """Draw the tracks into the clip's frames.

    Args:
        clip: the video that the pipeline read.
        tracks: frame number to the rows of its `tracks` message, boxes as x, y, w, h in 0..1.
        moments: frame numbers of the events, for the sheet.
        zones, lines: as in the configuration.
        video: MP4 to write, up to the last frame that has a message.
        sheet: JPEG to write: frames with events in which something is tracked, or others where those are too few.

    Returns:
        number of frames written.
    """
    import cv2

    last = max(tracks, default=-1)
    chosen = _choose([index for index in sorted(tracks) if tracks[index]], set(moments), SHEET_COLUMNS * SHEET_ROWS)
    tiles: list[NDArray[np.uint8]] = []
    capture = cv2.VideoCapture(str(clip))
    writer = None
    try:
        for index, image in _frames(capture, last):
            _annotate(image, tracks.get(index, ()), zones, lines)
            if writer is None:
                size = (image.shape[1], image.shape[0])
                writer = cv2.VideoWriter(
                    str(video), cv2.VideoWriter_fourcc(*"mp4v"), capture.get(cv2.CAP_PROP_FPS) or 25.0, size
                )
                if not writer.isOpened():
                    raise StreamError(f"cannot write {video}")
            writer.write(image)
            if index in chosen:
                tiles.append(_tile(image))
    finally:
        capture.release()
        if writer is not None:
            writer.release()
    if tiles:
        cv2.imwrite(str(sheet), _contact_sheet(tiles), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return last + 1


def _frames(capture: Any, last: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    for index in range(last + 1):
        got, image = capture.read()
        if not got:
            return
        yield index, image


def _annotate(
    image: NDArray[np.uint8], rows: Sequence[Mapping[str, Any]], zones: Mapping[str, Any], lines: Mapping[str, Any]
) -> None:
    import numpy as np

    from pyasc.agent.draw import draw
    from pyasc.types import Tracks

    height, width = image.shape[:2]
    boxes = np.array([row["box"] for row in rows], np.float32).reshape(-1, 4) * np.array(
        [width, height] * 2, np.float32
    )
    boxes[:, 2:] += boxes[:, :2]
    tracks = Tracks(
        boxes,
        np.array([row["score"] for row in rows], np.float32),
        np.zeros(len(rows), np.int64),
        [row["label"] for row in rows],
        np.array([row["track"] for row in rows], np.int64),
    )
    draw(image, tracks, zones, lines)


def _choose(busy: list[int], moments: set[int], count: int) -> set[int]:
    telling = [index for index in busy if index in moments]
    rest = [index for index in busy if index not in moments]
    return {*_evenly(telling, count), *_evenly(rest, count - min(len(telling), count))}


def _evenly(items: list[int], count: int) -> list[int]:
    if len(items) <= count:
        return items
    return [items[(2 * k + 1) * len(items) // (2 * count)] for k in range(count)]


def _tile(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    height = round(image.shape[0] * SHEET_TILE_WIDTH / image.shape[1])
    tile: NDArray[np.uint8] = cv2.resize(image, (SHEET_TILE_WIDTH, height), interpolation=cv2.INTER_AREA)
    return tile


def _contact_sheet(tiles: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    import numpy as np

    blank = np.zeros_like(tiles[0])
    filled = [*tiles, *[blank] * (-len(tiles) % SHEET_COLUMNS)]
    rows = [np.hstack(filled[start : start + SHEET_COLUMNS]) for start in range(0, len(filled), SHEET_COLUMNS)]
    return np.vstack(rows)
