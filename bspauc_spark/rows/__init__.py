"""The rows of a DataFrame: their columns, checks, the Arrow shards they are staged as, and reading these back."""
