//! The ledger as text.

use std::io::Write;

use super::Accounts;
use crate::catalogue;

impl Accounts {
    /// Writes the ledger to standard output.
    pub(crate) fn print(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        for (name, value) in self.rows() {
            let line = format!("{name:<48}{value:>14}");
            writeln!(out, "{}", line.trim_end())?;
        }
        const SHOWN: usize = 40;
        for difference in self.differences.iter().take(SHOWN) {
            writeln!(out, "difference: {difference}")?;
        }
        match self.differences.len() {
            0 => writeln!(out, "ledger: balanced"),
            count => writeln!(out, "ledger: NOT balanced, {count} differences"),
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let odd = &self.oddities;
        let mut rows: Vec<(&str, String)> = vec![
            ("lines in the file", number(self.lines)),
            ("  the same line again", number(odd.same_line)),
            (
                "  the same order under another message id",
                number(odd.same_order),
            ),
            (
                "  a known message id with another payload",
                number(odd.same_id_other_payload),
            ),
            (
                "  a known order id with another payload",
                number(odd.same_order_other_payload),
            ),
            ("  no message at all", number(odd.broken)),
            ("  orders that cannot be accepted", number(odd.unacceptable)),
            ("  commands nobody handles", number(odd.unhandled)),
            ("  events nobody wants", number(odd.unwanted_events)),
            ("deliveries", number(self.delivered)),
            ("workers killed", number(self.kills)),
            ("", String::new()),
        ];
        rows.extend(self.outcome());
        rows
    }

    fn outcome(&self) -> Vec<(&'static str, String)> {
        let books = &self.actual;
        let in_state = |state| {
            books
                .orders
                .iter()
                .filter(move |order| order.state == state)
        };
        let shop = books
            .bookings
            .iter()
            .filter(|(_, account, _)| account == "shop");
        let due: i64 = self
            .expected
            .orders
            .iter()
            .filter(|order| order.state == "paid")
            .map(|order| order.cents)
            .sum();
        let sold: i64 = books
            .reservations
            .iter()
            .map(|(_, _, quantity)| quantity)
            .sum();
        let filled: i64 = catalogue::ITEMS.iter().map(|item| item.in_stock).sum();
        let left: i64 = books.stock.values().sum();
        let letters: u32 = books.dead_messages.values().sum();
        vec![
            ("orders placed", number(books.orders.len())),
            ("  paid", number(in_state("paid").count())),
            ("  rejected", number(in_state("rejected").count())),
            (
                "  stuck behind a dead letter",
                number(in_state("placed").count()),
            ),
            (
                "duplicates refused by the inbox",
                number(self.tally.duplicates + self.tally.conflicts),
            ),
            (
                "handler runs that took effect",
                number(books.handled.values().sum::<i64>()),
            ),
            ("retries", number(self.tally.failed)),
            (
                "runs undone because the lease was lost",
                number(self.tally.leases_lost),
            ),
            ("dead letters of messages", number(letters)),
            (
                "dead letters of broken deliveries",
                number(books.dead_deliveries.len()),
            ),
            ("pieces: delivered to the shop", number(filled)),
            ("pieces: sold", number(sold)),
            ("pieces: left", number(left)),
            ("money due", money(due)),
            ("money in", money(shop.map(|(_, _, cents)| cents).sum())),
            (
                "sum of all accounts",
                money(books.bookings.iter().map(|(_, _, cents)| cents).sum()),
            ),
            (
                "mails sent (at least one for each paid order)",
                number(self.mails),
            ),
        ]
    }
}

/// A number with a blank between thousands.
fn number(value: impl ToString) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn money(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", number(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_written_to_the_cent() {
        assert_eq!(money(123_456_705), "1 234 567.05");
        assert_eq!(money(-5), "-0.05");
        assert_eq!(number(100_000), "100 000");
    }
}
