"""Files that a power cut leaves either old or new, and the lock of a folder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import time
from pathlib import Path

from pyasc.errors import PyascError
from pyasc.types import Resource

_log = logging.getLogger(__name__)

_LOCK = "agent.lock"
# The engine gives itself less.
ORPHAN_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 3.0
# Readers of the status hold the lock for an instant.
_INSTANT_S = 0.3


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write to a temporary name beside it, sync, rename, sync the folder.

    Args:
        path: the file to write or replace.
        data: its whole content.
        mode: its permissions.
        durable: False leaves out the syncs: readers still see the old or the new content, a power cut may lose both.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_holder(folder: Path) -> int | None:
    """Process id of the agent that runs with this state folder, or None.

    Raises:
        OSError: the lock may not be read.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).strip()
        return int(holder) if holder.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def _kill_holders(path: Path) -> None:
    """End the processes that have this file open, other than this one."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(link.readlink() == path for link in (entry / "fd").iterdir()):
                _log.error("process %s of an agent that was killed does not end: it is ended", entry.name)
                os.kill(int(entry.name), signal.SIGKILL)


class FolderLock(Resource):
    """Held by the one agent of a state folder and by its engine; it is free when both have ended, however they did."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        The engine of an agent that was killed is waited for, as it may still use devices and the spool; one that does not end by
        itself is killed.

        Raises:
            PyascError: another agent holds it.
            OSError: the folder cannot be written.
        """
        path = folder / _LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        began = time.monotonic()
        limits = [_INSTANT_S, ORPHAN_TIMEOUT_S, ORPHAN_TIMEOUT_S + _KILL_TIMEOUT_S]
        while not self._take():
            waited = time.monotonic() - began
            if waited > limits[0]:
                holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
                orphan = holder.isdigit() and not Path(f"/proc/{holder}").exists()
                if not orphan or len(limits) == 1:
                    self.close()
                    raise PyascError(f"another agent (process {holder or 'unknown'}) uses {folder}")
                if waited > ORPHAN_TIMEOUT_S:
                    _kill_holders(path.resolve())
                limits.pop(0)
            time.sleep(0.05)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """The descriptor: a process that inherits it holds the lock too."""
        return self._descriptor

    def close(self) -> None:
        """Let go; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
