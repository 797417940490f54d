"""``penstock pipeline``: jobs over everything that was published, on Spark."""
