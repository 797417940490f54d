"""``penstock pipeline``: Spark jobs over all published messages."""
