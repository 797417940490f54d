"""``penstock queue``: the commands on queues."""
