//! Offline check.
pub struct R {
    pub problems: Vec<String>,
}
pub fn check_dir(
    _: &std::path::Path,
    _: &crate::MdsConfig,
    _: bool,
    _: &mut dyn FnMut(u64),
) -> Result<R, crate::MdsError> {
    Ok(R { problems: vec![] })
}
