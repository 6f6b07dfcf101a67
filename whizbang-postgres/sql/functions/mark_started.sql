-- Notes that a suspect is about to run alone, so that another loss counts as an attempt.
-- False if the lease is lost. Called before a row with losses runs. Indexes: primary keys.
CREATE OR REPLACE FUNCTION mark_started(p_message_id uuid, p_handler_name text, p_lane text, p_stream_id uuid, p_token uuid)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  IF p_stream_id IS NOT NULL THEN
    PERFORM FROM wh_inbox_streams g
    WHERE g.lane = p_lane AND g.stream_id = p_stream_id AND g.lease_token = p_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      RETURN false;
    END IF;
  END IF;
  UPDATE wh_inbox i SET started_at = clock_timestamp()
  WHERE i.message_id = p_message_id AND i.handler_name = p_handler_name
    AND (p_stream_id IS NOT NULL OR i.lease_token = p_token);
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION mark_started IS 'Notes that a suspect is about to run alone';
