//! Identity of this start of a server.

use ring::rand::{SecureRandom, SystemRandom};

/// Returns a number that no other start of a server has; never 0.
pub(crate) fn random_instance() -> u64 {
    let mut bytes = [0u8; 8];
    let random = if SystemRandom::new().fill(&mut bytes).is_ok() {
        u64::from_le_bytes(bytes)
    } else {
        let now = nacre_env::clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40)
    };
    random.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_starts_have_the_same_number() {
        assert_ne!(random_instance(), random_instance());
    }
}
