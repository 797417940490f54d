"""What Penstock is tested with, and what an engine written elsewhere can be tested with.

- ``clock``: a clock that moves by hand.
- ``inline``: an app's workers, run inline on a store in memory.
- ``model``: the oracle, the whole storage contract in plain lists and dicts.
- ``conformance``: the compliance suite, one file a verb; it needs pytest.
- ``machine``: random programs, run on an engine and on the oracle side by side; it needs
  hypothesis.

Nothing here is imported by the product.
"""
