-- Books a payment from the customer's account to the shop's. Called by `take_payment`. No locks.
INSERT INTO bookings (order_id, account, cents)
VALUES ($1, 'customer:' || $2, -$3), ($1, 'shop', $3)
