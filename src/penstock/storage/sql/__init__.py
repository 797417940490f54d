"""The SQL engine: one engine, two dialects (``postgresql``, ``mysql``), many servers.

- ``engine``: every verb of the contract, and the module that implements it.
- ``core``: runs a transaction, retries it, notifies afterwards; ``catalog``: queues and topics.
- ``work``: one transaction: the rows it holds, their changes, and the queues to notify.
- ``deliveries``: rows of deliveries with the same history; ``moves``: every transition.
- ``segments``: rows of the log; ``append``: new ones.
- ``database``: the interface of a dialect; ``statements``: SQL by name; ``migrations``.
- the rest: one module per verb or group of related verbs.
"""
