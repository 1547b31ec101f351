"""What a file is that should have been a checkpoint: people mix them up, and a download may have brought something else."""

from __future__ import annotations

_HTML = (b"<!doctype html", b"<html")


def describe(data: memoryview) -> str | None:
    """One sentence without its subject on a file that is surely no checkpoint; None for one that may be."""
    head = bytes(data[:512])
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the checkpoint; run git lfs pull"
    if head.lstrip().lower().startswith(_HTML):
        return "is an HTML page, not the checkpoint; the download went wrong"
    if head[257:262] == b"ustar":
        return "is a tar archive, as PyTorch before 0.1.10 wrote; save it again with a newer PyTorch"
    for magic, at, kind in (
        (b"\x89HDF", 0, "an HDF5 file, as Keras writes"),
        (b"\x1f\x8b", 0, "a gzip file; unpack it first"),
        (b"TFL3", 4, "a TFLite model"),
        (b'{"', 8, "a safetensors file, which has the weights and not the network"),
    ):
        if head[at : at + len(magic)] == magic:
            return f"is {kind}, not a PyTorch checkpoint"
    return None
