//! Medians and ranges over rounds, as Markdown.

/// One figure, once per round.
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn range(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }

    pub(crate) fn per_second(&self) -> String {
        let (min, max) = self.range();
        let [median, min, max] = [self.median(), min, max].map(thousands);
        format!("{median} /s ({min}–{max})")
    }

    pub(crate) fn micros(&self) -> String {
        let (min, max) = self.range();
        format!("{:.2} µs ({min:.2}–{max:.2})", self.median())
    }

    pub(crate) fn plain(&self) -> String {
        let (min, max) = self.range();
        format!("{:.1} ({min:.1}–{max:.1})", self.median())
    }
}

/// Formats a number with separators: `150,000`.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the ratio of the medians. Rounds alternate, so both saw the machine under the same conditions.
pub(crate) fn ratio(this: &Series, that: &Series) -> String {
    format!("{:.2}", this.median() / that.median())
}

pub(crate) struct Table(Vec<[String; 3]>);

impl Table {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn row(&mut self, what: String, figure: String, note: String) {
        eprintln!("{what}: {figure} {note}");
        self.0.push([what, figure, note]);
    }

    pub(crate) fn print(&self) {
        println!("| what | median (range) | |\n|---|---|---|");
        for [what, figure, note] in &self.0 {
            println!("| {what} | {figure} | {note} |");
        }
    }
}
