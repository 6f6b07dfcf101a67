-- Purpose: names the test databases whose process has ended, and the templates grown old.
-- Caller:  the janitor thread, once when it starts.
-- Locks:   none.
-- Index:   none; pg_database and pg_locks are small.
-- A process holds the advisory lock ($1, number) from before it creates its first database
-- `whizbang_test_<number>_…` to its end. Names are read before locks, so no living process's
-- database is taken for abandoned. A template says in its comment when it was made; one that is
-- missed is made again.
SELECT d.datname::text
FROM pg_catalog.pg_database AS d
WHERE d.datname ~ '^whizbang_test_[0-9]{1,10}_'
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory'
      AND l.classid = $1::int4::oid
      AND l.objid::text = pg_catalog.split_part(d.datname::text, '_', 3)
  )
UNION ALL
SELECT d.datname::text
FROM pg_catalog.pg_database AS d
WHERE d.datname ~ '^whizbang_template_[0-9a-f]{16}$'
  AND pg_catalog.substring(
        pg_catalog.shobj_description(d.oid, 'pg_database'),
        '^whizbang template of ([0-9-]{10})$'
      )::date < CURRENT_DATE - 14
