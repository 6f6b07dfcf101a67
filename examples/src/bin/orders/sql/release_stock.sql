-- Puts the reserved goods of an order back; does nothing if there are none. Called by
-- `release_stock`. Locks: the reservation and the stock row. Index: reservations_by_order.
WITH released AS (
  DELETE FROM reservations r WHERE r.order_id = $1 RETURNING r.sku, r.quantity)
UPDATE stock s SET available = s.available + r.quantity FROM released r WHERE s.sku = r.sku
