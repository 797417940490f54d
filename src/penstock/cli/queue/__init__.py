"""``penstock queue``: the commands by what they do to a queue."""
