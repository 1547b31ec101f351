"""The `.asc` file: archive, manifest, and which part of it a device takes."""
