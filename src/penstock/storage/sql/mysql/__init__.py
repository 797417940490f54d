"""MySQL and MariaDB: the adapter, its schema, and one file per statement."""
