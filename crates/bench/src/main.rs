//! `nacre bench` as a program of its own, for measuring without the rest of the file system.

use clap::Parser;

#[derive(Parser)]
#[command(about = "Measures file systems and the machine under them")]
struct Program {
    #[command(subcommand)]
    command: nacre_bench::cli::Command,
}

fn main() {
    std::process::exit(nacre_bench::cli::run(Program::parse().command, &[]));
}
