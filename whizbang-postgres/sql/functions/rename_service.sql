-- Hands the schema over to a service of another name; false if it belongs to somebody else.
-- Called by an operator while the service is stopped: rows for its own handlers are renamed too.
CREATE OR REPLACE FUNCTION rename_service(p_from text, p_to text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE wh_settings SET setting_value = p_to, updated_at = clock_timestamp()
  WHERE setting_key = 'service_name' AND setting_value = p_from;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE wh_outbox SET destination = p_to WHERE destination = p_from;
  UPDATE wh_dead_letters SET destination = p_to WHERE destination = p_from;
  RETURN true;
END $$;
COMMENT ON FUNCTION rename_service IS 'Hands the schema over to a service of another name';
