-- Lets scheduled rows that have fallen due join the end of their streams.
-- Called by deliver_outbox_locally and claim_outbox. Locks the rows it promotes; a row that is
-- being cancelled is left to the canceller. Index: wh_outbox_scheduled.
CREATE OR REPLACE FUNCTION promote_scheduled(p_destination text, p_limit int)
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  UPDATE wh_outbox o SET scheduled_at = NULL, sequence = nextval(pg_get_serial_sequence('wh_outbox', 'sequence'))
  FROM (SELECT d.message_id FROM wh_outbox d
        WHERE d.destination = p_destination AND d.scheduled_at IS NOT NULL AND d.scheduled_at <= clock_timestamp()
        ORDER BY d.scheduled_at, d.sequence LIMIT p_limit FOR UPDATE SKIP LOCKED) due
  WHERE o.message_id = due.message_id AND o.destination = p_destination
$$;
COMMENT ON FUNCTION promote_scheduled IS 'Scheduled outbox rows that fell due join the end of their streams';
