"""Test tools for Penstock and for engines developed elsewhere.

- ``clock``: a clock that tests move by hand.
- ``inline``: an app's workers, run inline on a store in memory.
- ``model``: the oracle, the whole storage contract in plain lists and dicts.
- ``conformance``: the compliance suite, one file per verb; needs pytest.
- ``simulation``: random programs under virtual time and failing disks; ``penstock simulate``.
"""
