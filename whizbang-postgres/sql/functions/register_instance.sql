-- Takes an instance and its subscriptions onto the lists. Returns 'ok', or the name of the other
-- service that the schema belongs to. Called by start(), and again by an instance that was taken
-- for dead. Two services that come at once queue at the settings row.
CREATE OR REPLACE FUNCTION register_instance(
  p_instance_id uuid, p_service text, p_host text, p_handlers text[], p_types text[], p_lanes text[])
RETURNS text LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
  v_owner text;
BEGIN
  INSERT INTO wh_settings (setting_key, setting_value, value_type, description)
  VALUES ('service_name', p_service, 'string', 'The service that this schema belongs to')
  ON CONFLICT (setting_key) DO NOTHING;
  SELECT s.setting_value INTO v_owner FROM wh_settings s WHERE s.setting_key = 'service_name';
  IF v_owner <> p_service THEN
    RETURN v_owner;
  END IF;
  PERFORM touch_subscriptions(p_handlers, p_types, p_lanes, true);
  INSERT INTO wh_service_instances AS i (instance_id, service, host) VALUES (p_instance_id, p_service, p_host)
  ON CONFLICT (instance_id) DO UPDATE SET heartbeat_at = clock_timestamp();
  RETURN 'ok';
END $$;
COMMENT ON FUNCTION register_instance IS 'Takes an instance and its subscriptions onto the lists';
