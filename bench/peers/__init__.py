"""The peers table: eight workloads on Penstock and on what people use instead, in one run.

::

    run.py ── starts ──▶ a private server (one file per peer: redis_streams.py, rabbitmq.py, …)
       └───── starts ──▶ client.py: a producer and a consumer process
                            └── both write to ──▶ probe.py: every message, in shared memory

Every run has a new server on an empty folder. The peers take turns within a round, so that a drift
of the machine affects all of them. Every message that a consumer receives is checked.
"""
