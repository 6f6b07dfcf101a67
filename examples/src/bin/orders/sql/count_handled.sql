-- Counts one run of a handler for an order. Called by every handler in its own transaction.
-- Locks: the counter's row. Index: handled_pkey.
INSERT INTO handled AS h (handler, order_id, times) VALUES ($1, $2, 1)
ON CONFLICT ON CONSTRAINT handled_pkey DO UPDATE SET times = h.times + 1
