"""The words of Penstock as frozen values. No I/O, no engine, no wall clock but the injected one.

See docs/semantics.md for what each word means; one word a concept, here as everywhere.
"""
