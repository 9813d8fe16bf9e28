"""What becomes of the rows of a DataFrame: columns, checks, Arrow shards on storage, and reading them back."""
