-- Identifies the database. A restored dump creates another table, a copy is another database or
-- cluster, and a cluster that was restored to a point in time or promoted has another timeline.
SELECT format(
    'system=%s timeline=%s database=%s table=%s',
    cluster.system_identifier,
    left(pg_walfile_name(pg_current_wal_lsn()), 8),
    own.oid,
    'penstock_store'::regclass::oid
)
FROM pg_control_system() AS cluster
CROSS JOIN pg_database AS own
WHERE own.datname = current_database()
