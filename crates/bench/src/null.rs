//! stub
use crate::{cli::Common, error::Error, report::Report, worker::Myself};
/// a
#[derive(Debug, clap::Args)]
pub struct NullArguments {
    /// c
    #[command(flatten)]
    pub common: Common,
}
/// a
#[derive(Debug, clap::Args)]
pub struct ServeArguments {}
/// a
pub fn serve(_: &ServeArguments) -> Result<(), Error> {
    Ok(())
}
/// a
pub fn serve_echo() -> Result<(), Error> {
    Ok(())
}
/// a
pub fn measure(_: &NullArguments, _: &Myself) -> Result<Report, Error> {
    Ok(Report::new(""))
}
