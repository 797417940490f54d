"""The SQS door: Amazon SQS's API, JSON and Query protocols, on this server's queues.

A queue of SQS is a Penstock queue that takes the topic of its own name. docs/doors/sqs.md says
what maps to what. ``door`` recognises and authenticates requests, ``protocol`` decodes and encodes
them, ``operations`` lists the 23 operations, and the other modules carry them out.
"""
