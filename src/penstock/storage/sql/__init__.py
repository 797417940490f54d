"""The SQL engine: one engine, two dialects (``postgresql``, ``mysql``), many servers.

- ``engine``: every verb of the contract, and the module that implements it.
- ``database``: the interface of a dialect: connections, transactions, statements by name.
- ``segments``: the log, one row per publish; ``runs``: delivery state, one row per group of
  deliveries with the same history; ``phases``: the state of a run.
- ``work``: one transaction: the runs it holds, their changes, and the queues to notify.
- ``moves``: every transition of a delivery.
- the rest: one module per verb or group of related verbs.
"""
