"""From tracks to events: who came, who went, who entered or left which zone and crossed which line."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pyasc.agent.clock import rfc3339
from pyasc.agent.zones import Line, LinePassage, Zone, ZoneStay
from pyasc.types import Detections, Frame, Tracks

Event = dict[str, Any]

LEAVE_AFTER_S = 2.0
# Share of the past in a track's votes for its label: a wrong label must be seen several times in a row to win.
_LABEL_MEMORY = 0.9
_BOX_DIGITS = 5


class EventMaker:
    """Makes the events of one stream. Used from one thread.

    `enter` comes with the first frame that shows a track, `leave` when it was not seen for `leave_after_s` seconds of the stream's
    time or the stream ends; its `reason` is `not-seen`, `stream-lost`, `end-of-stream`, `stopped` or `failed`. A track that is seen
    again after its `leave` enters again. The same two types with `zone` tell of its stay in a zone, `cross` with `line` and
    `direction` of crossings. All look at the middle of the box's lower side, where people and cars touch the ground, held inside
    the picture.

    Args:
        zones, lines: in 0..1 of the picture, so they scale with it.
        leave_after_s: how long a track may be unseen.
    """

    def __init__(
        self, zones: Sequence[Zone] = (), lines: Sequence[Line] = (), leave_after_s: float = LEAVE_AFTER_S
    ) -> None:
        self._zones, self._lines = tuple(zones), tuple(lines)
        self._leave_after_s = leave_after_s
        self._present: dict[int, _Presence] = {}
        self._now = 0.0

    def update(self, tracks: Tracks, frame: Frame) -> list[Event]:
        """Take the tracks of the next frame; the events in the order in which they happened."""
        self._now = frame.time
        events = self._expire(frame.clock, "not-seen")
        aspect = frame.width / frame.height
        boxes = relative_boxes(tracks.xyxy.tolist(), frame.width, frame.height)
        rows = zip(tracks.track_id.tolist(), tracks.label, tracks.score.tolist(), boxes, strict=True)
        for number, label, score, box in rows:
            track = self._present.get(number)
            if track is None:
                track = self._present[number] = _Presence(number, self._zones, self._lines)
                track.see(label, score, box, frame)
                events.append(track.event("enter", frame.time))
            else:
                track.see(label, score, box, frame)
            events += track.move(aspect, frame.time)
        return events

    def expire(self, clock: float, time_s: float) -> list[Event]:
        """Take that the stream is interrupted: who was not seen for long enough leaves.

        Args:
            clock, time_s: now, as in `Frame`.
        """
        self._now = max(self._now, time_s)
        return self._expire(clock, "stream-lost")

    def close(self, reason: str) -> list[Event]:
        """Every track leaves, for this reason, at the time of the last frame."""
        events = [event for track in self._present.values() for event in track.leave(self._now, reason)]
        self._present.clear()
        return events

    def _expire(self, clock: float, reason: str) -> list[Event]:
        gone = [track for track in self._present.values() if clock - track.seen_clock > self._leave_after_s]
        for track in gone:
            del self._present[track.number]
        return [event for track in gone for event in track.leave(self._now, reason)]


class _Presence:
    """What is known of one track while it is there."""

    def __init__(self, number: int, zones: Iterable[Zone], lines: Iterable[Line]) -> None:
        self.number = number
        self.seen_clock = self.seen_time = 0.0
        self._score = 0.0
        self._box: list[float] = []
        self._votes: dict[str, float] = {}
        self._stays = [ZoneStay(zone) for zone in zones]
        self._passages = [LinePassage(line) for line in lines]

    def see(self, label: str, score: float, box: list[float], frame: Frame) -> None:
        self.seen_clock, self.seen_time = frame.clock, frame.time
        self._score, self._box = score, box
        for known in self._votes:
            self._votes[known] *= _LABEL_MEMORY
        self._votes[label] = self._votes.get(label, 0.0) + score

    def move(self, aspect: float, time_s: float) -> list[Event]:
        x, y, width, height = self._box
        foot_x, foot_y = x + width / 2, y + height
        changed = [stay for stay in self._stays if stay.move(foot_x, foot_y)]
        events = [self.event("enter" if s.inside else "leave", time_s, zone=s.zone.name) for s in changed]
        for passage in self._passages:
            direction = passage.move(foot_x, foot_y, aspect)
            if direction is not None:
                events.append(self.event("cross", time_s, line=passage.line.name, direction=direction))
        return events

    def leave(self, time_s: float, reason: str) -> list[Event]:
        """The ends of its stays in zones, then its own; `last_seen` says when it was last in the picture."""
        more = {"reason": reason, "last_seen": rfc3339(self.seen_time)}
        zones = [stay.zone.name for stay in self._stays if stay.inside]
        return [
            *(self.event("leave", time_s, zone=zone, **more) for zone in zones),
            self.event("leave", time_s, **more),
        ]

    def event(self, kind: str, time_s: float, **more: str) -> Event:
        return {
            "id": str(uuid.uuid4()),
            "time": rfc3339(time_s),
            "type": kind,
            "track": self.number,
            "label": max(self._votes, key=lambda label: self._votes[label]),
            "score": round(self._score, 4),
            "box": [round(value, _BOX_DIGITS) for value in self._box],
            **more,
        }


def relative_boxes(xyxy: Iterable[Sequence[float]], width: int, height: int) -> list[list[float]]:
    """Boxes in pixels as left, top, width, height in 0..1, cut at the picture's edges."""
    boxes = []
    for box in xyxy:
        left, right = (min(max(value / width, 0.0), 1.0) for value in (box[0], box[2]))
        top, bottom = (min(max(value / height, 0.0), 1.0) for value in (box[1], box[3]))
        boxes.append([left, top, right - left, bottom - top])
    return boxes


def frame_message(found: Detections, frame: Frame) -> dict[str, Any]:
    """What was found in one frame, as the payload of the topic `tracks`; plain detections have no `track`."""
    boxes = relative_boxes(found.xyxy.tolist(), frame.width, frame.height)
    numbers: list[int | None] = found.track_id.tolist() if isinstance(found, Tracks) else [None] * len(found)
    rows = []
    for number, label, score, box in zip(numbers, found.label, found.score.tolist(), boxes, strict=True):
        row = {"label": label, "score": round(score, 4), "box": [round(value, _BOX_DIGITS) for value in box]}
        rows.append(row if number is None else {"track": number, **row})
    key = "tracks" if isinstance(found, Tracks) else "detections"
    return {"time": rfc3339(frame.time), "frame": frame.index, key: rows}
