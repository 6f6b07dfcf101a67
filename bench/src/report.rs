//! Figures as a table and as JSON.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Serialize;

/// One figure of its own.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    name: String,
    value: f64,
    unit: &'static str,
}

impl Line {
    pub(crate) fn latency(name: &str, time: Duration) -> Self {
        Self {
            name: name.to_owned(),
            value: time.as_secs_f64() * 1_000.0,
            unit: "ms",
        }
    }

    pub(crate) fn count(name: &str, value: f64) -> Self {
        Self {
            name: name.to_owned(),
            value,
            unit: "",
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Pairs {
    order: usize,
    floor: Vec<f64>,
    ours: Vec<f64>,
}

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pairs: BTreeMap<String, Pairs>,
    singles: Vec<Line>,
}

impl Report {
    /// Progress, on standard error so that the table stays clean.
    pub(crate) fn say(&self, text: &str) {
        // A closed standard error is no reason to stop measuring.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    pub(crate) fn pair(&mut self, name: &str, floor: f64, ours: f64) {
        let order = self.pairs.len();
        let pairs = self.pairs.entry(name.to_owned()).or_insert_with(|| Pairs {
            order,
            ..Pairs::default()
        });
        pairs.floor.push(floor);
        pairs.ours.push(ours);
        self.say(&format!(
            "  {name}: {ours:.0}/s, floor {floor:.0}/s, ratio {:.2}",
            ours / floor
        ));
    }

    pub(crate) fn single(&mut self, line: Line) {
        self.say(&format!("  {}: {:.2} {}", line.name, line.value, line.unit));
        self.singles.push(line);
    }

    #[allow(clippy::print_stdout)]
    pub(crate) fn print(&self) {
        let mut pairs: Vec<_> = self.pairs.iter().collect();
        pairs.sort_by_key(|(_, pairs)| pairs.order);
        println!(
            "{:<40} {:>10} {:>10} {:>7}  min..max",
            "", "floor/s", "ours/s", "ratio"
        );
        for (name, pairs) in pairs {
            let mut ratios: Vec<_> = pairs
                .ours
                .iter()
                .zip(&pairs.floor)
                .map(|(ours, floor)| ours / floor)
                .collect();
            let ratio = median(&mut ratios);
            let (low, high) = (ratios.first().copied(), ratios.last().copied());
            println!(
                "{name:<40} {:>10.0} {:>10.0} {ratio:>7.2}  {:.2}..{:.2}",
                median(&mut pairs.floor.clone()),
                median(&mut pairs.ours.clone()),
                low.unwrap_or_default(),
                high.unwrap_or_default()
            );
        }
        for line in &self.singles {
            println!("{:<40} {:>10.2} {}", line.name, line.value, line.unit);
        }
    }

    pub(crate) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
