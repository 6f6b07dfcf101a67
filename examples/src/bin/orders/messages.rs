//! What the services of the shop say to each other.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event};

/// Asks for an order. Sent by the shop's front, again and again until somebody answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", stream = order_id, reply = OrderReceipt)]
pub(crate) struct PlaceOrder {
    pub(crate) order_id: Uuid,
    pub(crate) customer: String,
    pub(crate) sku: String,
    pub(crate) quantity: u32,
}

/// The answer, the same for every repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderReceipt {
    pub(crate) order_id: Uuid,
    pub(crate) cents: i64,
}

/// An order was accepted. One stream for each kind of goods: the warehouse takes one at a time
/// from each shelf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "orders.order_placed", stream = sku)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: Uuid,
    pub(crate) customer: String,
    pub(crate) sku: String,
    pub(crate) quantity: u32,
    pub(crate) cents: i64,
}

/// The goods are set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "orders.stock_reserved", stream = order_id)]
pub(crate) struct StockReserved {
    pub(crate) order_id: Uuid,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// The money is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "orders.payment_taken", stream = order_id)]
pub(crate) struct PaymentTaken {
    pub(crate) order_id: Uuid,
    pub(crate) customer: String,
}

/// The order cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "orders.order_rejected", stream = order_id)]
pub(crate) struct OrderRejected {
    pub(crate) order_id: Uuid,
    pub(crate) reason: String,
}
