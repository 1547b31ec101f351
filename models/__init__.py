"""Model files: the `.asc` archive, its manifest, converters, pre- and post-processing."""
