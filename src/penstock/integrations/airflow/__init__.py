"""A message queue provider for Apache Airflow: a message of a queue becomes an event of an asset.

Airflow finds it by the entry point ``apache_airflow_provider``. A DAG uses it by its scheme::

    trigger = MessageQueueTrigger(scheme="penstock", conn_id="penstock", queue_name="orders")
    orders = Asset("orders", watchers=[AssetWatcher(name="queue", trigger=trigger)])

Importing this package does not import Airflow: ``provider`` and ``trigger`` do.
"""
