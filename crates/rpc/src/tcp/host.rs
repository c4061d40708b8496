//! What tells this host and this process from others.

use std::sync::OnceLock;

/// Identity of the running kernel: changes with every boot. Zero if the system does not tell.
pub(crate) fn boot_id() -> [u8; 16] {
    static ID: OnceLock<[u8; 16]> = OnceLock::new();
    *ID.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|t| parse(&t))
            .unwrap_or([0; 16])
    })
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let mut id = [0u8; 16];
    let mut digits = text.trim().bytes().filter(|&b| b != b'-');
    for byte in &mut id {
        let (high, low) = (digits.next()?, digits.next()?);
        *byte = ((char::from(high).to_digit(16)? << 4) | char::from(low).to_digit(16)?) as u8;
    }
    digits.next().is_none().then_some(id)
}

/// A number that no other start of a server has; never 0.
pub(crate) fn random_instance() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is valid for writes of its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    let random = if got == bytes.len() as isize {
        u64::from_le_bytes(bytes)
    } else {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40)
    };
    random.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_read_as_written() {
        let id = parse("00112233-4455-6677-8899-aabbccddeeff\n").expect("valid");
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(parse("0011"), None);
        assert_eq!(parse("00112233-4455-6677-8899-aabbccddeeff00"), None);
        assert_ne!(random_instance(), random_instance());
    }
}
