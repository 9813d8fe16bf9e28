"""The θ side: networks, pairs of rows, steps of θ, scores. Imports torch and numpy, never pyspark."""
