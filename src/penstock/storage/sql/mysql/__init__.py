"""MySQL and MariaDB: the adapter, its schema, and one file a statement."""
