"""Random programs on every engine, compared with the oracle step by step."""

from penstock.testing.machine import CI, machine_for

TestMemory = machine_for("memory://").TestCase
TestMemory.settings = CI

TestRocksdb = machine_for("rocksdb://{path}").TestCase
TestRocksdb.settings = CI
