-- name: write_statistics
INSERT INTO synergon_statistics ({StatisticsRow}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (span, at, kind, queue, source) DO UPDATE SET numbers = excluded.numbers

-- name: statistics_since
SELECT {StatisticsRow} FROM synergon_statistics
WHERE span = :span AND at >= :moment AND (:kind IS NULL OR kind = :kind) AND (:queue IS NULL OR queue = :queue)

-- name: oldest_statistics
SELECT min(at) FROM synergon_statistics WHERE span = ? AND at < ?

-- name: take_statistics
DELETE FROM synergon_statistics WHERE span = ? AND at = ? RETURNING {StatisticsRow}

-- name: prune_statistics
DELETE FROM synergon_statistics WHERE (span, at, kind, queue, source) IN (
    SELECT span, at, kind, queue, source FROM synergon_statistics WHERE span = ? AND at < ?
    ORDER BY at, kind, queue, source LIMIT ?
)
