-- Lets scheduled rows that have fallen due join the end of their streams, in the order of their times.
-- Called by deliver_outbox_locally and claim_outbox, under the destination's advisory lock. Locks the
-- rows it promotes; a row that is being cancelled is left to the canceller. Index: wh_outbox_scheduled.
CREATE OR REPLACE FUNCTION promote_scheduled(p_destination text, p_limit int)
RETURNS void LANGUAGE plpgsql VOLATILE
-- deliver_outbox_locally switches nested loops off; here they keep the update from walking the outbox.
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
  WITH due AS MATERIALIZED (
    SELECT d.message_id FROM wh_outbox d
    WHERE d.destination = p_destination AND d.scheduled_at IS NOT NULL AND d.scheduled_at <= clock_timestamp()
    ORDER BY d.scheduled_at, d.sequence LIMIT p_limit FOR UPDATE SKIP LOCKED),
  -- The numbers are drawn in that order, whatever order the update takes the rows in.
  numbered AS MATERIALIZED (
    SELECT d.message_id, nextval(pg_get_serial_sequence('wh_outbox', 'sequence')) AS sequence FROM due d)
  UPDATE wh_outbox o SET scheduled_at = NULL, sequence = n.sequence
  FROM numbered n WHERE o.message_id = n.message_id AND o.destination = p_destination;
END $$;
COMMENT ON FUNCTION promote_scheduled IS 'Scheduled outbox rows that fell due join the end of their streams';
