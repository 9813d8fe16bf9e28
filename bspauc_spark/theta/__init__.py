"""The θ side: networks, pairs of rows, steps of θ, scores. This room imports torch and numpy, but never pyspark."""
