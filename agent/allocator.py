"""glibc's allocator, told to give memory back.

Models and frames are large, and are allocated and freed by many threads. By its defaults glibc makes up to eight heaps a core and
keeps the holes in them, so that an engine which is configured often ends with more than twice the memory that it uses.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2


def bound() -> None:
    """Let threads share a few heaps; to be called before there are threads. Does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return the pages of what has been freed to the system. Does nothing where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
