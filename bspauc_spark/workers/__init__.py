"""The θ side: rows, networks, pair losses, scoring and training. Imports torch, numpy, pyarrow, never pyspark."""
