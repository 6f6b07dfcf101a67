-- What must be gone once nothing is left to do: gates, payloads, keys without a result.
SELECT (SELECT count(*) FROM bank.wh_inbox_streams) + (SELECT count(*) FROM clearing.wh_inbox_streams)
     + (SELECT count(*) FROM bank.wh_inbox_payloads) + (SELECT count(*) FROM clearing.wh_inbox_payloads)
     + (SELECT count(*) FROM bank.wh_command_results WHERE NOT completed)
