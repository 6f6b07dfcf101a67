-- Lets another instance relay to a destination at once. Called when a relay stops.
CREATE OR REPLACE FUNCTION release_relay(p_instance_id uuid, p_destination text)
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  DELETE FROM wh_outbox_relays WHERE destination = p_destination AND instance_id = p_instance_id
$$;
COMMENT ON FUNCTION release_relay IS 'Frees the relay of a destination';
