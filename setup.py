"""Build entry point; every fact about the package is in setup.cfg."""

from setuptools import setup

setup()
