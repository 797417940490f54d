"""The data pipeline: everything that is done to messages in bulk, on Spark.

``format`` is Penstock as a Spark table, ``lake`` what is kept of it for good, ``report`` what it
looks like, ``jobs`` what is run. A laptop and a cluster differ by the session's settings only.
pyspark comes with the extra ``spark``.
"""
