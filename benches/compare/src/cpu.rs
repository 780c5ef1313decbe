//! The CPU time of other processes, read from `/proc`.

use std::fmt::Display;

use crate::work::Failure;

/// Returns the seconds of CPU that a process has used.
pub(crate) fn seconds(process: impl Display) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || -> Result<f64, Failure> { Ok(fields.next().unwrap_or_default().parse()?) };
    // Linux counts in hundredths of a second.
    Ok((next()? + next()?) / 100.0)
}
