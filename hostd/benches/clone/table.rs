//! The figures, with the floor and the goal beside them.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// What was promised of a row.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// The median, in milliseconds.
    Milliseconds(f64),
    /// The median over the floor's.
    Floors(f64),
}

#[derive(Default)]
struct Row {
    name: String,
    /// In milliseconds.
    times: Vec<f64>,
    floors: Vec<f64>,
    goals: Vec<Goal>,
}

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    figures: Vec<(String, f64, &'static str, Option<f64>)>,
}

impl Table {
    fn row(&mut self, name: &str) -> &mut Row {
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(Row { name: name.to_owned(), ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// One round's seconds, and the floor's.
    pub(crate) fn note(&mut self, name: &str, seconds: f64, floor: f64) {
        let row = self.row(name);
        row.times.push(seconds * 1000.0);
        row.floors.push(floor * 1000.0);
    }

    pub(crate) fn goal(&mut self, name: &str, goal: Goal) {
        self.row(name).goals.push(goal);
    }

    /// A single figure; `most` is what was promised.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &'static str, most: Option<f64>) {
        self.figures.push((name.to_owned(), value, unit, most));
    }

    /// Answers how many goals were missed.
    pub(crate) fn print(&mut self, rounds: usize) -> usize {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<&str> = load.split_whitespace().take(2).collect();
        println!("{rounds} rounds, milliseconds; load of the machine {}", load.join(" "));
        println!("{:<38} {:>8} {:>8} {:>8} {:>8} {:>6}", "", "median", "least", "floor", "least", "×");
        let mut missed = 0;
        for row in &mut self.rows {
            let (median, least) = middle(&mut row.times);
            print!("{:<38} {median:>8.2} {least:>8.2}", row.name);
            let floor = (!row.floors.is_empty()).then(|| middle(&mut row.floors));
            if let Some((floor, least)) = floor {
                print!(" {floor:>8.2} {least:>8.2} {:>6.2}", median / floor);
            }
            for goal in &row.goals {
                let (shown, kept) = match (*goal, floor) {
                    (Goal::Milliseconds(most), _) => (format!("≤ {most} ms"), median <= most),
                    (Goal::Floors(most), Some((floor, _))) => (format!("≤ {most}×"), median <= most * floor),
                    (Goal::Floors(most), None) => (format!("≤ {most}×"), false),
                };
                missed += usize::from(!kept);
                print!("  {shown} {}", if kept { "ok" } else { "MISSED" });
            }
            println!();
        }
        for (name, value, unit, most) in &self.figures {
            print!("{name:<38} {value:>8.2} {unit:<2}");
            if let Some(most) = most {
                missed += usize::from(value > most);
                print!("  ≤ {most} {unit} {}", if value <= most { "ok" } else { "MISSED" });
            }
            println!();
        }
        missed
    }

    pub(crate) fn save(&mut self, rounds: usize) {
        // …/target/measure/hostd → …/target/bench
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_hostd"));
        let folder = binary.ancestors().nth(2).unwrap().join("bench");
        fs::create_dir_all(&folder).unwrap();
        let row = |row: &mut Row| {
            let (median, least) = middle(&mut row.times);
            let floor = (!row.floors.is_empty()).then(|| middle(&mut row.floors).0);
            json!({"what": row.name, "median_ms": median, "least_ms": least, "floor_ms": floor})
        };
        let rows: Vec<Value> = self.rows.iter_mut().map(row).collect();
        let figure = |(what, value, unit, target): &(String, f64, &str, Option<f64>)| json!({"what": what, "value": value, "unit": unit, "target": target});
        let figures: Vec<Value> = self.figures.iter().map(figure).collect();
        let all = json!({"bench": "clone", "rounds": rounds, "rows": rows, "figures": figures});
        let file = folder.join("clone.json");
        fs::write(&file, format!("{all:#}\n")).unwrap();
        println!("written to {}", file.display());
    }
}

/// Median and least.
fn middle(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}
