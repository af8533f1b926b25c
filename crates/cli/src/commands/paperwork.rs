//! Pages that are made from the description of the flags: completions for shells, and the manual.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::{CliError, End};
use crate::output::print_text;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<End, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pleach", &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(End::Done)
}

/// Prints the manual: the page of the program and one section for each command.
pub(crate) fn manual() -> Result<End, CliError> {
    let mut page = Vec::new();
    let mut root = Cli::command();
    root.build();
    render(&root, &mut page).map_err(CliError::Write)?;
    print_text(&String::from_utf8_lossy(&page))?;
    Ok(End::Done)
}

fn render(root: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let manual = clap_mangen::Man::new(root.clone());
    manual.render_title(page)?;
    manual.render_name_section(page)?;
    synopsis(root, page);
    manual.render_description_section(page)?;
    manual.render_options_section(page)?;
    for command in root.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        let name = format!("pleach {}", command.get_name());
        page.extend(format!(".SH {}\n", name.to_uppercase()).bytes());
        let part = clap_mangen::Man::new(command.clone().bin_name(name));
        let mut sections = Vec::new();
        synopsis(command, &mut sections);
        part.render_description_section(&mut sections)?;
        part.render_options_section(&mut sections)?;
        // Sections of a command are parts of its own section.
        page.extend(String::from_utf8_lossy(&sections).replace(".SH ", ".SS ").bytes());
    }
    manual.render_extra_section(page)
}

/// The lines that `--help` begins with, which say what goes where; the flags have a section of their own.
fn synopsis(command: &Command, page: &mut Vec<u8>) {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(|line| line.trim().replace('-', "\\-"));
    page.extend(format!(".SH SYNOPSIS\n{}\n", lines.collect::<Vec<_>>().join("\n.br\n")).bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_a_section_for_each_command() {
        let mut page = Vec::new();
        let mut root = Cli::command();
        root.build();
        render(&root, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for command in ["CHAT", "RUN", "PULL", "LIST", "INFO", "RM", "INSPECT", "BENCH", "DOCTOR", "COMPLETIONS"] {
            assert!(page.contains(&format!(".SH PLEACH {command}\n")), "{command}");
        }
        assert!(page.contains(".SH SYNOPSIS\npleach [OPTIONS]\n.br\npleach <COMMAND>\n"), "{}", &page[..1000]);
        assert!(page.contains(".SS SYNOPSIS\npleach run [OPTIONS] [MODEL] [PROMPT]\n"));
        assert!(!page.contains("PLEACH SERVER") && !page.contains("PLEACH HELP"));
    }
}
