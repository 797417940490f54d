"""A DAG that runs when there are messages in the queue "orders".

With a server (`make run`), `penstock[airflow]` in Airflow's environment, and the connection

    AIRFLOW_CONN_PENSTOCK=http://127.0.0.1:8080

put this file into the folder of DAGs. The triggerer watches the queue.
"""

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag, task

trigger = MessageQueueTrigger(
    scheme="penstock", conn_id="penstock", queue_name="orders", filter="topic = 'orders'"
)
orders = Asset("orders", watchers=[AssetWatcher(name="orders_queue", trigger=trigger)])


@dag(schedule=[orders])
def charge_orders():
    @task
    def charge(triggering_asset_events=None):
        for event in triggering_asset_events[orders]:
            delivery = event.extra["payload"]
            print("message", delivery["message"]["id"], "is order", delivery["payload"]["id"])

    charge()


charge_orders()
