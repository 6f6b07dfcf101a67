//! The judgement: what the plan alone says must be there, against what is there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, Write},
};

use anyhow::Context;
use sqlx::PgPool;
use uuid::Uuid;

use super::{
    broker::Broker,
    messages::{ACCOUNTS, Transfer},
    plan::Plan,
};

/// Handlers whose effects come in the order of their streams.
const ORDERED: [&str; 4] = ["statement", "credit", "tally", "settle"];
/// Differences printed of each kind.
const SHOWN: usize = 5;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    lost: u64,
    doubled: u64,
    out_of_order: u64,
    pub(crate) effects: u64,
    pub(crate) letters: u64,
    pub(crate) problems: Vec<String>,
}

struct Effect {
    id: i64,
    handler: String,
    account: i64,
    place: i64,
    number: i64,
}

impl From<(i64, String, i64, i64, i64)> for Effect {
    fn from((id, handler, account, place, number): (i64, String, i64, i64, i64)) -> Self {
        Self {
            id,
            handler,
            account,
            place,
            number,
        }
    }
}

/// A dead letter: service, message, handler, reason, payload and error.
type Letter = (String, Option<Uuid>, String, String, Option<String>, String);

/// Compares the database with the plan.
pub(crate) async fn judge(
    plan: &Plan,
    pool: &PgPool,
    broker: &Broker,
) -> anyhow::Result<Judgement> {
    let rows: Vec<(i64, String, i64, i64, i64)> =
        sqlx::query_as("SELECT id, handler, account, place, number FROM effects ORDER BY id")
            .fetch_all(pool)
            .await
            .context("the effects cannot be read")?;
    let effects: Vec<_> = rows.into_iter().map(Effect::from).collect();
    let mut judgement = Judgement {
        effects: effects.len() as u64,
        ..Judgement::default()
    };
    judgement.count_effects(plan, &effects);
    judgement.check_order(&effects);
    judgement.check_receipts(&effects, broker);
    judgement.check_mails(plan, pool).await?;
    judgement.check_money(plan, pool).await?;
    judgement.check_letters(plan, pool).await?;
    let left: i64 = sqlx::query_scalar(include_str!("sql/leftovers.sql"))
        .fetch_one(pool)
        .await
        .context("what is left cannot be counted")?;
    if left > 0 {
        let text = format!("{left} gates, payloads or unfinished keys are left over");
        judgement.problems.push(text);
    }
    Ok(judgement)
}

/// Handlers that must have dealt with a transfer, and the one that never can.
fn expected(transfer: &Transfer) -> (Vec<&'static str>, Option<(&'static str, &'static str)>) {
    let after = |handler, followers: &[&'static str]| match transfer.kills(handler) {
        true => Vec::new(),
        false => followers.to_vec(),
    };
    let mut handlers = vec!["transfer"];
    handlers.extend(after("transfer", &["statement", "credit", "notice"]));
    if handlers.contains(&"credit") {
        handlers.extend(after("credit", &["tally", "settle"]));
    }
    let services = [
        ("bank", "transfer"),
        ("bank", "statement"),
        ("bank", "settle"),
        ("clearing", "credit"),
        ("clearing", "tally"),
        ("clearing", "notice"),
    ];
    let dead = services
        .into_iter()
        .find(|(_, handler)| transfer.kills(handler));
    handlers.retain(|handler| !transfer.kills(handler));
    (handlers, dead)
}

impl Judgement {
    fn differ(&mut self, texts: impl IntoIterator<Item = String>) -> u64 {
        let texts: Vec<_> = texts.into_iter().collect();
        let count = texts.len();
        self.problems.extend(texts.into_iter().take(SHOWN));
        if count > SHOWN {
            let more = format!("… and {} more like the last one", count - SHOWN);
            self.problems.push(more);
        }
        count as u64
    }

    fn count_effects(&mut self, plan: &Plan, effects: &[Effect]) {
        let mut found: BTreeMap<(i64, &str), u64> = BTreeMap::new();
        for effect in effects {
            *found.entry((effect.number, &effect.handler)).or_default() += 1;
        }
        let mut missing = Vec::new();
        let mut doubled = Vec::new();
        for transfer in &plan.transfers {
            for handler in expected(transfer).0 {
                match found.remove(&(transfer.number, handler)) {
                    None => missing.push(format!("transfer {}: no {handler}", transfer.number)),
                    Some(1) => {}
                    Some(times) => {
                        let text = format!("transfer {}: {times} × {handler}", transfer.number);
                        doubled.push(text);
                    }
                }
            }
        }
        // Whatever is left should not be there at all: the effect of a message that failed.
        let surplus = found.into_iter().map(|((number, handler), times)| {
            format!("transfer {number}: {times} × {handler}, which must have been undone")
        });
        doubled.extend(surplus);
        self.lost += self.differ(missing);
        self.doubled += self.differ(doubled);
    }

    fn check_order(&mut self, effects: &[Effect]) {
        let mut last: HashMap<(&str, i64), i64> = HashMap::new();
        let mut wrong = Vec::new();
        for effect in effects {
            let handler = effect.handler.as_str();
            if !ORDERED.contains(&handler) {
                continue;
            }
            let before = last.entry((handler, effect.account)).or_default();
            if effect.place <= *before {
                wrong.push(format!(
                    "{handler}, account {}: place {} after place {before}",
                    effect.account, effect.place
                ));
            }
            *before = effect.place.max(*before);
        }
        self.out_of_order += self.differ(wrong);
    }

    /// Every repeat of a command gets the answer of its one execution.
    fn check_receipts(&mut self, effects: &[Effect], broker: &Broker) {
        let made = effects.iter().filter(|effect| effect.handler == "transfer");
        let made: HashMap<i64, i64> = made.map(|effect| (effect.number, effect.id)).collect();
        let wrong = broker.receipts().into_iter().flat_map(|(number, answers)| {
            let right = made.get(&number).copied();
            answers
                .into_iter()
                .filter(move |answer| Some(*answer) != right)
                .map(move |answer| {
                    format!("transfer {number}: answered with row {answer}, which is {right:?}")
                })
        });
        let wrong: Vec<_> = wrong.collect();
        self.differ(wrong);
    }

    async fn check_mails(&mut self, plan: &Plan, pool: &PgPool) -> anyhow::Result<()> {
        let mailed: Vec<i64> = sqlx::query_scalar("SELECT number FROM mails")
            .fetch_all(pool)
            .await
            .context("the mails cannot be read")?;
        let mailed: BTreeSet<i64> = mailed.into_iter().collect();
        let missing = plan
            .transfers
            .iter()
            .filter(|transfer| !transfer.kills("transfer") && !mailed.contains(&transfer.number));
        let missing: Vec<_> = missing
            .map(|transfer| format!("transfer {}: no mail", transfer.number))
            .collect();
        self.lost += self.differ(missing);
        Ok(())
    }

    async fn check_money(&mut self, plan: &Plan, pool: &PgPool) -> anyhow::Result<()> {
        let mut expected_balances: BTreeMap<i64, i64> = (0..ACCOUNTS).map(|it| (it, 0)).collect();
        for transfer in &plan.transfers {
            let handlers = expected(transfer).0;
            if handlers.contains(&"transfer") {
                *expected_balances.entry(transfer.from).or_default() -= transfer.cents;
            }
            if handlers.contains(&"credit") {
                *expected_balances.entry(transfer.to).or_default() += transfer.cents;
            }
        }
        let found: Vec<(i64, i64)> = sqlx::query_as("SELECT account, balance FROM accounts")
            .fetch_all(pool)
            .await
            .context("the balances cannot be read")?;
        let wrong = found.into_iter().filter_map(|(account, cents)| {
            let right = expected_balances.get(&account).copied().unwrap_or(0);
            (cents != right).then(|| format!("account {account}: {cents} cents instead of {right}"))
        });
        let wrong: Vec<_> = wrong.collect();
        self.differ(wrong);
        Ok(())
    }

    /// Dead are the poisoned ones, each once, and nobody else.
    async fn check_letters(&mut self, plan: &Plan, pool: &PgPool) -> anyhow::Result<()> {
        let letters: Vec<Letter> = sqlx::query_as(include_str!("sql/letters.sql"))
            .fetch_all(pool)
            .await
            .context("the dead letters cannot be read")?;
        self.letters = letters.len() as u64;
        let mut meant = meant_letters(plan);
        let mut wrong = Vec::new();
        for (service, id, handler, reason, payload, error) in letters {
            let unreadable = id.filter(|id| plan.unreadable.contains_key(id));
            let key = match unreadable {
                Some(id) => format!("unreadable {id}"),
                None => {
                    let number = payload.as_deref().and_then(number_in);
                    format!("{service}.{handler} {}", number.unwrap_or(i64::MAX))
                }
            };
            let left = meant.entry(key.clone()).or_default();
            *left -= 1;
            // What is not even JSON is kept as bytes, once for each time it comes.
            let may_repeat = unreadable.is_some_and(|id| plan.unreadable.get(&id) == Some(&false));
            if *left < 0 && !may_repeat {
                wrong.push(format!("a dead letter too many: {key}: {reason}: {error}"));
            }
        }
        let missing = meant.into_iter().filter(|(_, left)| *left > 0);
        let missing: Vec<_> = missing
            .map(|(key, _)| format!("no dead letter: {key}"))
            .collect();
        self.lost += self.differ(missing);
        self.differ(wrong);
        Ok(())
    }

    /// Prints what differs and the last line; returns whether all is well.
    pub(crate) fn print(&self, problems: &[String]) -> anyhow::Result<bool> {
        let mut out = io::stdout().lock();
        for problem in problems {
            writeln!(out, "chaos: {problem}")?;
        }
        writeln!(
            out,
            "chaos: lost {}, doubled {}, out of order {}",
            self.lost, self.doubled, self.out_of_order
        )?;
        out.flush()?;
        Ok(problems.is_empty())
    }
}

fn meant_letters(plan: &Plan) -> BTreeMap<String, i64> {
    let transfers = plan.transfers.iter().filter_map(|transfer| {
        let (service, handler) = expected(transfer).1?;
        Some((format!("{service}.{handler} {}", transfer.number), transfer))
    });
    // A sender may have sent the same one under two ids, which die one by one.
    let mut meant: BTreeMap<String, i64> = BTreeMap::new();
    for (key, transfer) in transfers {
        let times = match transfer.kills("transfer") {
            true => plan.copies(transfer.number),
            false => 1,
        };
        meant.insert(key, times);
    }
    meant.extend(plan.bombs.iter().map(|it| (format!("bank.bomb {it}"), 1)));
    meant.extend(
        plan.unreadable
            .keys()
            .map(|it| (format!("unreadable {it}"), 1)),
    );
    meant
}

/// The number inside a payload: of a bomb, of a transfer, or of the transfer in an event.
fn number_in(payload: &str) -> Option<i64> {
    let value: serde_json::Value = serde_json::from_str(payload).ok()?;
    let inner = value.get("transfer").unwrap_or(&value);
    inner.get("number")?.as_i64()
}
