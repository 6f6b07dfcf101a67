-- What the progress line shows, in one row. Called by the parent a few times a second. No locks.
SELECT
  (SELECT count(*) FROM orders) AS placed,
  (SELECT count(*) FROM orders WHERE state = 'paid') AS paid,
  (SELECT count(*) FROM orders WHERE state = 'rejected') AS rejected,
  (SELECT count(*) FROM wh_inbox) + (SELECT count(*) FROM wh_outbox) AS waiting,
  (SELECT count(*) FROM wh_dead_letters) AS dead
