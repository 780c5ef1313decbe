//! The file `table.md`: a section for each scenario. A run replaces the sections of its scenarios.

use std::process::Command;

use crate::bench::{Bench, result};
use crate::scenarios::Scenario;

/// Replaces the section of a scenario by the rows of this run.
pub(crate) fn write(scenario: Scenario, bench: &mut Bench) -> std::io::Result<()> {
    let path = result("table.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let commit = output("git", &["describe", "--always", "--dirty"]);
    let date = output("date", &["-u", "+%F"]);
    let measured = format!(
        "## {}\n\nCommit {commit}, {date}: {}",
        scenario.name(),
        bench.markdown()
    );
    std::fs::write(path, replaced(&old, scenario, &measured))
}

fn replaced(old: &str, scenario: Scenario, measured: &str) -> String {
    let sections = Scenario::ALL.into_iter().filter_map(|it| {
        if it == scenario {
            return Some(measured.trim_end().to_owned());
        }
        let title = format!("## {}\n", it.name());
        let section = &old[old.find(&title)?..];
        let end = section[1..]
            .find("\n## ")
            .map_or(section.len(), |at| at + 1);
        Some(section[..end].trim_end().to_owned())
    });
    let sections: Vec<_> = sections.collect();
    format!("{}\n", sections.join("\n\n"))
}

/// Returns the output of a program, or `unknown`.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_replaces_section_of_its_scenario_only() {
        let first = replaced("", Scenario::Herd, "## herd\n\nold\n");
        assert_eq!(first, "## herd\n\nold\n");
        let second = replaced(&first, Scenario::Hot, "## hot\n\n| a |\n");
        assert_eq!(second, "## hot\n\n| a |\n\n## herd\n\nold\n");
        let third = replaced(&second, Scenario::Hot, "## hot\n\n| b |\n");
        assert_eq!(third, "## hot\n\n| b |\n\n## herd\n\nold\n");
        let fourth = replaced(&third, Scenario::Herd, "## herd\n\nnew\n");
        assert_eq!(fourth, "## hot\n\n| b |\n\n## herd\n\nnew\n");
    }
}
