"""The agent's log, and what is taken out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pyasc.agent.logs import MAX_MESSAGE_CHARS, RecentLog, set_up_logging
from pyasc.agent.masking import mask


@pytest.fixture
def log() -> Iterator[RecentLog]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield set_up_logging("info")
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("rtsp://u:p@h/s", "rtsp://***@h/s"),
        ("rtsp://u:p@ss@h/s", "rtsp://***@h/s"),
        ("rtsp://u:p/ss@h/s", "rtsp://***@h/s"),
        ("rtsp://u:p?ss#1@h/s", "rtsp://***@h/s"),
        ("rtsp://u:12/34@h/s", "rtsp://u:12/34@h/s"),  # a host `u`, its port and a path: nobody can tell
        ("1rtsp://u:p@h", "1rtsp://***@h"),
        ("http://token@h:80/", "http://***@h:80/"),
        ("http://h:8080/users/@me", "http://h:8080/users/@me"),
        ("http://h/a@b?c=d@e", "http://h/a@b?c=d@e"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("rtsp://u:p@a/1,rtsp://v:q@b/2", "rtsp://***@a/1,rtsp://***@b/2"),
        ("http://h/?token=abc&x=1", "http://h/?token=***&x=1"),
        ('{"password": "a b", "user": "c"}', '{"password": ***, "user": "c"}'),
        ("an@example.com, 12:30, author: Bob", "an@example.com, 12:30, author: Bob"),
    ],
)
def test_secrets_are_taken_out_and_the_rest_stays(text, masked):
    assert mask(text) == masked
    assert mask(masked) == masked


@pytest.mark.parametrize("unit", ["a", "a:", "://", "a://", "a://b:c", "password ", "token='", "@:/"])
def test_long_text_is_masked_in_time_that_grows_with_its_length(unit):
    """A pattern that tries again from each character would need hours for this."""
    text = unit * 300_000
    assert len(mask(text)) >= len(text) // 3


def test_a_long_record_keeps_its_begin_and_its_end_and_no_part_of_a_secret(log):
    at_the_cut = MAX_MESSAGE_CHARS // 2 - 20
    logging.getLogger("x").error("%srtsp://user:hunter2hunter2@host/ %s the cause", "a" * at_the_cut, "b" * 5000)
    (record,) = log.last(5)
    assert record["message"].startswith("aaa")
    assert record["message"].endswith("bbb the cause")
    assert len(record["message"]) <= MAX_MESSAGE_CHARS
    assert "hunter" not in record["message"]


def test_a_traceback_is_masked_in_the_memory_and_on_stderr(log, capsys):
    log = set_up_logging("info")  # with the stderr that is captured now
    try:
        raise ValueError("rtsp://u:hunter2@h is away")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert log.last(1)[0]["message"].endswith("ValueError: rtsp://***@h is away")
    shown = capsys.readouterr().err
    assert "ValueError: rtsp://***@h is away" in shown
    assert "hunter2" not in shown


def test_a_record_that_cannot_be_formatted_fails_nobody(log, capsys):
    """Given to the handler itself: that of pytest, which hears all loggers, raises."""
    for text in ("%d frames", "the next one"):
        log.handle(logging.LogRecord("x", logging.ERROR, __file__, 1, text, ("many",) if "%" in text else (), None))
    assert [record["message"] for record in log.last(5)] == ["the next one"]
    assert "%d format: a real number is required" in capsys.readouterr().err


def test_levels_and_counts(log):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("x"), level)(level)
    assert [record["level"] for record in log.last(10)] == ["info", "warning", "error"]
    assert [record["message"] for record in log.last(10, "warning")] == ["warning", "error"]
    assert [record["message"] for record in log.last(1)] == ["error"]
    assert log.last(0) == []
