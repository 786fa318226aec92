-- name: retention
SELECT succeeded, failed, cancelled, statistics, declared, declared_by FROM {schema}.retention

-- name: retention_locked
SELECT succeeded, failed, cancelled, statistics, declared, declared_by FROM {schema}.retention FOR UPDATE

-- name: set_retention
INSERT INTO {schema}.retention AS stored (one, succeeded, failed, cancelled, statistics, declared, declared_by)
VALUES (1, $1, $2, $3, $4, $5, $6)
ON CONFLICT (one) DO UPDATE SET succeeded = excluded.succeeded, failed = excluded.failed,
    cancelled = excluded.cancelled, statistics = excluded.statistics, declared = excluded.declared, declared_by = excluded.declared_by
