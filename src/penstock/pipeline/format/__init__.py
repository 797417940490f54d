"""``format("penstock")``: the log, deliveries and histories as Spark tables, and a sink."""
