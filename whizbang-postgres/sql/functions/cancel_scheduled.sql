-- Cancels messages whose time has not come; returns how many. After that it is too late, even while a
-- row still waits to be promoted: the row of another destination may have left.
-- Waits for a row that is being promoted, and then finds it no longer scheduled. Index: wh_outbox_pkey.
CREATE OR REPLACE FUNCTION cancel_scheduled(p_message_ids uuid[])
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  v_cancelled bigint;
BEGIN
  WITH gone AS (
    DELETE FROM wh_outbox o WHERE o.message_id = ANY (p_message_ids) AND o.scheduled_at > clock_timestamp()
    RETURNING o.message_id)
  SELECT count(DISTINCT g.message_id) INTO v_cancelled FROM gone g;
  RETURN v_cancelled;
END $$;
COMMENT ON FUNCTION cancel_scheduled IS 'Cancels scheduled messages';
