//! stub
use crate::{cli::Common, error::Error, report::Report, worker::Myself};
/// a
#[derive(Debug, clap::Args)]
pub struct SliceArguments {
    /// c
    #[command(flatten)]
    pub common: Common,
}
/// a
pub fn measure(_: &SliceArguments, _: &Myself) -> Result<Report, Error> {
    Ok(Report::new(""))
}
