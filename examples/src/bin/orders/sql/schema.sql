-- The tables of the order service. Run once by the parent process before any worker starts.
-- None of them has a unique key that could swallow a second effect: if something took effect
-- twice, the ledger must see it. The counter adds up for the same reason.

CREATE TABLE orders (
  order_id uuid NOT NULL,
  customer text NOT NULL,
  sku text NOT NULL,
  quantity bigint NOT NULL,
  cents bigint NOT NULL,
  state text NOT NULL DEFAULT 'placed'
);
CREATE INDEX orders_by_id ON orders (order_id);

CREATE TABLE stock (
  sku text PRIMARY KEY,
  available bigint NOT NULL CHECK (available >= 0)
);

CREATE TABLE reservations (
  order_id uuid NOT NULL,
  sku text NOT NULL,
  quantity bigint NOT NULL
);
CREATE INDEX reservations_by_order ON reservations (order_id);

-- Double entry: the two bookings of a payment add up to zero.
CREATE TABLE bookings (
  order_id uuid NOT NULL,
  account text NOT NULL,
  cents bigint NOT NULL
);

-- How often each handler took effect for each order.
CREATE TABLE handled (
  handler text NOT NULL,
  order_id uuid NOT NULL,
  times bigint NOT NULL,
  PRIMARY KEY (handler, order_id)
);
