-- name: write_statistics
INSERT INTO synergon_statistics ({StatisticsRow}) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (span, at, kind, queue, source) DO UPDATE SET numbers = excluded.numbers

-- name: statistics_since
SELECT {StatisticsRow} FROM synergon_statistics
WHERE span = $1 AND at >= $2 AND ($3 IS NULL OR kind = $3) AND ($4 IS NULL OR queue = $4)

-- name: oldest_statistics
SELECT min(at) FROM synergon_statistics WHERE span = $1 AND at < $2

-- name: take_statistics
DELETE FROM synergon_statistics WHERE span = $1 AND at = $2 RETURNING {StatisticsRow}

-- name: prune_statistics
DELETE FROM synergon_statistics WHERE (span, at, kind, queue, source) IN (
    SELECT span, at, kind, queue, source FROM synergon_statistics WHERE span = $1 AND at < :now - $2
    ORDER BY at, kind, queue, source LIMIT $3
)
