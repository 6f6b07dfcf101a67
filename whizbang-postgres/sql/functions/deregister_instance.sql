-- Takes an instance off the list and gives back what it still holds. Called by shutdown, when what ran
-- has ended or was abandoned; a handler that runs on all the same is fenced off.
-- Locks: rows and gates it leases, SKIP LOCKED, then its own row.
CREATE OR REPLACE FUNCTION deregister_instance(p_instance_id uuid, p_lease interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
  v_released bigint := release_leases(ARRAY[p_instance_id], NULL, p_lease, false);
BEGIN
  DELETE FROM wh_service_instances WHERE instance_id = p_instance_id;
  RETURN v_released;
END $$;
COMMENT ON FUNCTION deregister_instance IS 'Takes an instance off the list and gives back what it holds';
