//! Helpers of several surveys.

/// Prints the median of some values, the smallest and the largest; returns the median.
pub fn spread(name: &str, values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    println!("{name}: {median:.2} ({:.2} to {:.2})", values[0], values[values.len() - 1]);
    median
}

/// Returns the number at a position of the command line, or a default.
pub fn number(arguments: &[String], at: usize, otherwise: u64) -> u64 {
    arguments.get(at).map_or(otherwise, |text| text.parse().expect("a number"))
}
