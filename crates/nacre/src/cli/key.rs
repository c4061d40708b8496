//! `nacre key`: keys of a file system.

use super::KeyCommand;
use crate::failure::Result;
use crate::instance::Instance;
use crate::keys;
use crate::process::RunDir;

/// Runs the command.
pub fn run(command: &KeyCommand) -> Result<i32> {
    match command {
        KeyCommand::Init { dir } => {
            let fingerprint = keys::init(dir)?;
            println!("authority made, SHA-256 {fingerprint}");
            let instance = Instance::open_existing(dir)?;
            if !RunDir::new(instance.run_dir()).running().is_empty() {
                println!(
                    "what runs is open until it is started again: 'nacre down {0}', then 'nacre up {0}'",
                    dir.display()
                );
            }
            Ok(0)
        }
    }
}
