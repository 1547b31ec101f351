"""Bindings of vendor libraries, a package for each C library, and their simulators."""
