-- Takes an instance off the list and frees its relays. Called by shutdown.
CREATE OR REPLACE FUNCTION deregister_instance(p_instance_id uuid)
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  DELETE FROM wh_outbox_relays WHERE instance_id = p_instance_id;
  DELETE FROM wh_service_instances WHERE instance_id = p_instance_id;
$$;
COMMENT ON FUNCTION deregister_instance IS 'Takes an instance off the list';
