//! What the input file alone says must be in the database at the end.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use uuid::Uuid;

use super::{Books, Oddities, Order};
use crate::{
    catalogue,
    input::{Kind, Line, MESSAGE_LIMIT},
    messages::PlaceOrder,
};

/// Reads the file as the service should: the first of two lines that contradict each other wins.
pub(super) fn from_file(lines: &[Vec<u8>]) -> (Books, Oddities) {
    let mut reading = Reading::default();
    for item in &catalogue::ITEMS {
        reading
            .books
            .stock
            .insert(item.sku.to_owned(), item.in_stock);
    }
    for line in lines {
        reading.line(line);
    }
    (reading.books, reading.oddities)
}

#[derive(Default)]
struct Reading {
    books: Books,
    oddities: Oddities,
    /// Message ids, with the payload that came first.
    messages: HashMap<Uuid, String>,
    /// Order ids, with the payload that came first.
    orders: HashMap<Uuid, Value>,
    broken: HashSet<Vec<u8>>,
}

impl Reading {
    fn line(&mut self, raw: &[u8]) {
        let Ok(line) = Line::read(raw) else {
            return self.broken(None, raw);
        };
        let payload = line.data.get();
        let named = !line.message_type.is_empty() && !line.message_type.contains(' ');
        if line.id.is_nil() || !named || payload.len() > MESSAGE_LIMIT {
            return self.broken(Some(line.id).filter(|id| !id.is_nil()), payload.as_bytes());
        }
        if line.kind == Kind::Event {
            // The service subscribes to no event of the shop's front.
            self.oddities.unwanted_events += 1;
            return;
        }
        match self.messages.get(&line.id) {
            Some(first) if first == payload => self.oddities.same_line += 1,
            Some(_) => self.oddities.same_id_other_payload += 1,
            None => {
                self.messages.insert(line.id, payload.to_owned());
                self.command(&line);
            }
        }
    }

    fn broken(&mut self, id: Option<Uuid>, raw: &[u8]) {
        self.oddities.broken += u64::from(self.broken.insert(raw.to_vec()));
        self.books.dead_deliveries.insert((id, raw.to_vec()));
    }

    fn command(&mut self, line: &Line<'_>) {
        if line.message_type != "orders.place_order" {
            self.oddities.unhandled += 1;
            return self.dead("unhandled", "-", line.id);
        }
        let payload = line.data.get();
        let Ok(order) = serde_json::from_str::<PlaceOrder>(payload) else {
            self.oddities.unacceptable += 1;
            return self.dead("failed", "place_order", line.id);
        };
        let Ok(value) = serde_json::from_str::<Value>(payload) else {
            return;
        };
        match self.orders.get(&order.order_id) {
            Some(first) if *first == value => self.oddities.same_order += 1,
            Some(_) => {
                self.oddities.same_order_other_payload += 1;
                self.dead("key_reused", "place_order", line.id);
            }
            None => match acceptable(&order) {
                Some(cents) => {
                    self.orders.insert(order.order_id, value);
                    self.place(order, cents);
                }
                None => {
                    self.oddities.unacceptable += 1;
                    self.dead("permanent", "place_order", line.id);
                }
            },
        }
    }

    fn dead(&mut self, reason: &str, handler: &str, id: Uuid) {
        let letter = format!("{reason} {handler} {id}");
        *self.books.dead_messages.entry(letter).or_default() += 1;
    }

    fn handled(&mut self, handlers: &[&str], order_id: Uuid) {
        for handler in handlers {
            *self
                .books
                .handled
                .entry(((*handler).to_owned(), order_id))
                .or_default() += 1;
        }
    }

    fn place(&mut self, order: PlaceOrder, cents: i64) {
        let id = order.order_id;
        let quantity = i64::from(order.quantity);
        self.handled(&["place_order"], id);
        let in_stock = catalogue::find(&order.sku).is_some_and(|item| item.in_stock > 0);
        let state = if order.sku == catalogue::ANVIL {
            self.dead("failed", "reserve_stock", id);
            "placed"
        } else if !in_stock {
            self.handled(&["reserve_stock", "reject_order", "release_stock"], id);
            "rejected"
        } else if catalogue::DECLINED.contains(&order.customer.as_str()) {
            self.handled(
                &[
                    "reserve_stock",
                    "take_payment",
                    "reject_order",
                    "release_stock",
                ],
                id,
            );
            "rejected"
        } else {
            self.handled(&["reserve_stock", "take_payment", "confirm_order"], id);
            self.sell(&order, quantity, cents);
            "paid"
        };
        self.books.orders.push(Order {
            order_id: id,
            customer: order.customer,
            sku: order.sku,
            quantity,
            cents,
            state: state.to_owned(),
        });
    }

    fn sell(&mut self, order: &PlaceOrder, quantity: i64, cents: i64) {
        let id = order.order_id;
        let books = &mut self.books;
        books.reservations.push((id, order.sku.clone(), quantity));
        books
            .bookings
            .push((id, format!("customer:{}", order.customer), -cents));
        books.bookings.push((id, "shop".to_owned(), cents));
        if let Some(left) = books.stock.get_mut(&order.sku) {
            *left -= quantity;
        }
    }
}

/// What an order costs, if it can be accepted.
fn acceptable(order: &PlaceOrder) -> Option<i64> {
    let named = !order.customer.is_empty() && !order.customer.contains('\0');
    let counted = order.quantity >= 1 && order.quantity <= catalogue::MAX_QUANTITY;
    let item = catalogue::find(&order.sku)?;
    (!order.order_id.is_nil() && named && counted).then(|| item.cents * i64::from(order.quantity))
}
