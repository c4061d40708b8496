//! Manual pages, made from the grammar of a program or from its usage texts.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::Path;

/// Section of administrators' commands.
pub const ADMINISTRATION: &str = "8";
/// Section of users' commands.
pub const USERS: &str = "1";
const MANUAL: &str = "NacreFS";

/// A page.
pub struct Page {
    /// Name of the command, with `-` between its words.
    pub name: String,
    /// Section of the manual.
    pub section: &'static str,
    /// Text in the language of troff.
    pub text: Vec<u8>,
}

impl Page {
    /// Writes the page to `NAME.SECTION` in a directory.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::write(dir.join(format!("{}.{}", self.name, self.section)), &self.text)
    }
}

/// Returns the pages of a command and its sub-commands, without hidden ones and those that `skip` selects.
pub fn pages_of(command: Command, skip: &dyn Fn(&Command) -> bool) -> Vec<Page> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, skip, &mut pages);
    pages
}

fn add_pages(command: &Command, skip: &dyn Fn(&Command) -> bool, pages: &mut Vec<Page>) {
    let inner: Vec<&Command> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).collect();
    inner.iter().filter(|inner| !skip(inner)).for_each(|inner| add_pages(inner, skip, pages));
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone())
        .title(&name)
        .section(ADMINISTRATION)
        .date("")
        .source(source())
        .manual(MANUAL);
    let mut text = Vec::new();
    let head = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| man.render_description_section(&mut text));
    let options = match command.get_arguments().any(|arg| !arg.is_hide_set()) {
        true => man.render_options_section(&mut text),
        false => Ok(()),
    };
    let list = match inner.is_empty() {
        true => Ok(()),
        false => man.render_subcommands_section(&mut text),
    };
    head.and(options).and(list).expect("memory takes every byte");
    let mut tail = Roff::new();
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        tail.control("SH", ["NOTES"]);
        verbatim(&mut tail, &notes.to_string());
    }
    see_also(&mut tail, &name);
    text.extend(tail.render().into_bytes());
    pages.push(Page { name, section: ADMINISTRATION, text });
}

/// Points to the page above, or to the other programs.
fn see_also(roff: &mut Roff, name: &str) {
    roff.control("SH", ["SEE ALSO"]);
    let above = name.rsplit_once('-').map(|(above, _)| format!("{above}(8), "));
    roff.text([roman(format!("{}lfs(1), lctl(8), mount.nacre(8)", above.unwrap_or_default()))]);
}

/// Adds text whose lines stay as they are.
fn verbatim(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.trim_end().lines() {
        match line.is_empty() {
            true => roff.control("sp", []),
            false => roff.text([roman(line)]),
        };
    }
    roff.control("fi", []);
}

/// A page that is made from usage texts.
pub struct Usage<'a> {
    /// Name of the program.
    pub name: &'a str,
    /// Section of the manual.
    pub section: &'static str,
    /// What it does, a phrase.
    pub about: &'a str,
    /// A call of it, after its name.
    pub synopsis: &'a str,
    /// Parts with a title and a text whose lines stay as they are, by section.
    pub parts: Vec<(&'a str, Vec<(&'a str, String)>)>,
    /// Names of related pages.
    pub related: &'a str,
}

impl Usage<'_> {
    /// Returns the page.
    pub fn page(&self) -> Page {
        let mut roff = Roff::new();
        let source = source();
        roff.control("TH", [self.name, self.section, "", &source, MANUAL]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{} - {}", self.name, self.about))]);
        roff.control("SH", ["SYNOPSIS"]);
        roff.text([bold(self.name), roman(format!(" {}", self.synopsis))]);
        for (title, texts) in &self.parts {
            roff.control("SH", [*title]);
            for (heading, text) in texts {
                if !heading.is_empty() {
                    roff.control("SS", [*heading]);
                }
                verbatim(&mut roff, text);
            }
        }
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(self.related)]);
        Page { name: self.name.to_owned(), section: self.section, text: roff.render().into_bytes() }
    }
}

fn source() -> String {
    format!("nacre {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn every_command_that_is_not_hidden_has_a_page_with_its_notes_line_by_line() {
        let deep =
            Command::new("add").about("Adds one").arg(Arg::new("dir")).after_help("Example: a\n\n  .b 'c'");
        let program = Command::new("prog")
            .about("Does it")
            .subcommand(Command::new("target").about("Targets").subcommand(deep))
            .subcommand(Command::new("secret").hide(true))
            .subcommand(Command::new("other"));
        let pages = pages_of(program, &|command| command.get_name() == "other");
        let names: Vec<_> = pages.iter().map(|page| page.name.as_str()).collect();
        assert_eq!(names, ["prog-target-add", "prog-target", "prog"]);
        let text = String::from_utf8(pages[0].text.clone()).expect("text");
        assert!(text.contains("prog\\-target\\-add \\- Adds one"), "{text}");
        assert!(text.contains(".nf\nExample: a\n.sp\n  .b "), "{text}");
        assert!(text.contains("prog\\-target(8), "), "{text}");
    }

    #[test]
    fn a_page_of_usages_has_a_heading_for_each() {
        let parts = vec![("COMMANDS", vec![("check", "usage: lfs check\n.x\n".to_owned())])];
        let usage =
            Usage { name: "lfs", section: USERS, about: "layouts", synopsis: "X", parts, related: "lctl(8)" };
        let page = usage.page();
        let text = String::from_utf8(page.text).expect("text");
        assert!(text.contains(".SS check\n.nf\nusage: lfs check\n\\&.x\n.fi\n"), "{text}");
        assert_eq!((page.name.as_str(), page.section), ("lfs", "1"));
    }
}
