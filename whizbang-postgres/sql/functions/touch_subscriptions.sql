-- Writes what an instance listens to; a line is touched at most once a minute, to spare the table.
-- p_move: whether the handlers' lanes are taken over too. Starting does, heartbeats do not, so that
-- during a rolling deploy the instances do not move a handler to and fro. What was stored in the lane
-- before is still claimed there, see claim_work.
-- Called by register_instance and record_heartbeat. Rows in key order. Index: wh_subscriptions_pkey.
CREATE OR REPLACE FUNCTION touch_subscriptions(p_handlers text[], p_types text[], p_lanes text[], p_move boolean)
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  INSERT INTO wh_subscriptions AS s (handler_name, message_type, lane)
  SELECT DISTINCT ON (i.handler, i.type) i.handler, i.type, i.lane
  FROM unnest(p_handlers, p_types, p_lanes) i(handler, type, lane)
  WHERE NOT EXISTS (SELECT FROM wh_subscriptions f WHERE f.handler_name = i.handler AND f.message_type = i.type
                      AND (f.lane = i.lane OR NOT p_move) AND f.last_seen_at > clock_timestamp() - interval '1 minute')
  ORDER BY i.handler, i.type
  ON CONFLICT ON CONSTRAINT wh_subscriptions_pkey
  DO UPDATE SET last_seen_at = clock_timestamp(),
    lane = CASE WHEN p_move THEN EXCLUDED.lane ELSE s.lane END,
    former_lanes = CASE WHEN p_move AND s.lane <> EXCLUDED.lane
                        THEN array_append(array_remove(array_remove(s.former_lanes, EXCLUDED.lane), s.lane), s.lane)
                        ELSE s.former_lanes END
$$;
COMMENT ON FUNCTION touch_subscriptions IS 'Writes what an instance listens to';
