"""The nouns of Penstock as frozen values. No I/O, no engine, no clock except the injected one.

docs/glossary.md defines the words, docs/semantics.md the behaviour.
"""
