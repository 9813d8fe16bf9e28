"""The package's version, kept apart so that setup can read it without importing anything else."""

__version__ = "0.1.0"
