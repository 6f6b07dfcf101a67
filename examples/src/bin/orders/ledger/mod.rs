//! The ledger: what the file says must be there, beside what is there.

mod actual;
mod expected;
mod print;

use std::collections::{BTreeMap, BTreeSet};

use sqlx::PgPool;
use uuid::Uuid;

use crate::{fleet::Fleet, wire::Tally};

/// Everything that is compared; computed once from the file and once from the database.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// Orders, each row of the table.
    orders: Vec<Order>,
    /// Reserved pieces of each order, each row of the table.
    reservations: Vec<(Uuid, String, i64)>,
    /// Bookings, each row of the table.
    bookings: Vec<(Uuid, String, i64)>,
    /// Pieces on each shelf.
    stock: BTreeMap<String, i64>,
    /// How often each handler took effect for each order.
    handled: BTreeMap<(String, Uuid), i64>,
    /// Dead letters of messages, and how many there are of each.
    dead_messages: BTreeMap<String, u32>,
    /// Deliveries that were no messages. They have no identity to recognise a repeat by, so each
    /// delivery is kept; they are compared as a set.
    dead_deliveries: BTreeSet<(Option<Uuid>, Vec<u8>)>,
    /// Messages still waiting.
    waiting: i64,
}

/// One row of the table of orders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    order_id: Uuid,
    customer: String,
    sku: String,
    quantity: i64,
    cents: i64,
    state: String,
}

/// What the file holds besides orders.
#[derive(Debug, Default)]
pub(crate) struct Oddities {
    same_line: u64,
    same_order: u64,
    same_id_other_payload: u64,
    same_order_other_payload: u64,
    unwanted_events: u64,
    broken: u64,
    unacceptable: u64,
    unhandled: u64,
}

/// The outcome of a run.
pub(crate) struct Accounts {
    expected: Books,
    actual: Books,
    oddities: Oddities,
    lines: usize,
    delivered: u64,
    kills: usize,
    tally: Tally,
    mails: u32,
    differences: Vec<String>,
}

/// Compares file and database.
pub(crate) async fn draw_up(
    lines: &[Vec<u8>],
    pool: &PgPool,
    fleet: &Fleet,
) -> anyhow::Result<Accounts> {
    let (expected, oddities) = expected::from_file(lines);
    let actual = actual::from_database(pool).await?;
    let mut differences = differences(&expected, &actual);
    let paid = expected.orders.iter().filter(|order| order.state == "paid");
    for order in paid {
        if !fleet.mails.contains_key(&order.order_id) {
            differences.push(format!("order {}: no mail was sent", order.order_id));
        }
    }
    Ok(Accounts {
        lines: lines.len(),
        delivered: fleet.delivered,
        kills: fleet.kills,
        tally: fleet.tally(),
        mails: fleet.mails.values().sum(),
        expected,
        actual,
        oddities,
        differences,
    })
}

fn differences(expected: &Books, actual: &Books) -> Vec<String> {
    let mut found = Vec::new();
    compare(
        "order",
        &counted(&expected.orders),
        &counted(&actual.orders),
        &mut found,
    );
    compare(
        "reservation",
        &counted(&expected.reservations),
        &counted(&actual.reservations),
        &mut found,
    );
    compare(
        "booking",
        &counted(&expected.bookings),
        &counted(&actual.bookings),
        &mut found,
    );
    compare("stock", &expected.stock, &actual.stock, &mut found);
    compare("handled", &expected.handled, &actual.handled, &mut found);
    compare(
        "dead letter",
        &expected.dead_messages,
        &actual.dead_messages,
        &mut found,
    );
    compare(
        "dead delivery",
        &counted(&readable(&expected.dead_deliveries)),
        &counted(&readable(&actual.dead_deliveries)),
        &mut found,
    );
    if actual.waiting != 0 {
        found.push(format!("{} messages still wait", actual.waiting));
    }
    let sum: i64 = actual.bookings.iter().map(|(_, _, cents)| cents).sum();
    if sum != 0 {
        found.push(format!(
            "the bookings add up to {sum} cents instead of zero"
        ));
    }
    found
}

fn readable(deliveries: &BTreeSet<(Option<Uuid>, Vec<u8>)>) -> Vec<(Option<Uuid>, String)> {
    let text = |raw: &Vec<u8>| String::from_utf8_lossy(raw).chars().take(200).collect();
    deliveries
        .iter()
        .map(|(id, raw)| (*id, text(raw)))
        .collect()
}

/// How often each row occurs.
fn counted<T: Ord + Clone>(rows: &[T]) -> BTreeMap<T, i64> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row.clone()).or_default() += 1;
    }
    counts
}

fn compare<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    expected: &BTreeMap<K, V>,
    actual: &BTreeMap<K, V>,
    found: &mut Vec<String>,
) {
    let keys: BTreeSet<&K> = expected.keys().chain(actual.keys()).collect();
    for key in keys {
        match (expected.get(key), actual.get(key)) {
            (Some(wanted), Some(there)) if wanted == there => {}
            (Some(wanted), Some(there)) => {
                found.push(format!("{what} {key:?}: {there:?} instead of {wanted:?}"));
            }
            (Some(_), None) => found.push(format!("{what} {key:?}: missing")),
            (None, Some(there)) => found.push(format!("{what} {key:?}: unexpected ({there:?})")),
            (None, None) => {}
        }
    }
}

impl Accounts {
    pub(crate) fn is_balanced(&self) -> bool {
        self.differences.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_effect_is_a_difference() {
        let order = Order {
            order_id: Uuid::from_u128(1),
            customer: "one".into(),
            sku: "tea".into(),
            quantity: 1,
            cents: 100,
            state: "paid".into(),
        };
        let expected = Books {
            orders: vec![order.clone()],
            ..Books::default()
        };
        let actual = Books {
            orders: vec![order.clone(), order],
            ..Books::default()
        };
        assert!(differences(&expected, &expected).is_empty());
        assert_eq!(differences(&expected, &actual).len(), 1);
    }
}
