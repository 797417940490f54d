"""The engine over SQL: one engine, two dialects (``postgresql``, ``mysql``), many servers.

- ``engine``: every verb of the contract, and the room that does it.
- ``database``: what a dialect provides: connections, transactions, statements by name.
- ``segments``: the log, one row a publish; ``runs``: delivery state, one row for all that
  lived the same life; ``phases``: where a run is.
- ``work``: one transaction: the runs it holds, what becomes of them, whom to tell.
- ``moves``: every transition of a delivery.
- the rest: one file a verb, or a few that belong together.
"""
