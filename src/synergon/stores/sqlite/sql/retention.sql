-- name: retention
SELECT succeeded, failed, cancelled, statistics, declared, declared_by FROM synergon_retention

-- name: retention_locked
SELECT succeeded, failed, cancelled, statistics, declared, declared_by FROM synergon_retention

-- name: set_retention
INSERT INTO synergon_retention (one, succeeded, failed, cancelled, statistics, declared, declared_by)
VALUES (1, $1, $2, $3, $4, $5, $6)
ON CONFLICT (one) DO UPDATE SET succeeded = excluded.succeeded, failed = excluded.failed,
    cancelled = excluded.cancelled, statistics = excluded.statistics, declared = excluded.declared, declared_by = excluded.declared_by
