//! Persistent list of the clients with locks or kept changes: after a restart the target waits for exactly these to
//! replay them.
//!
//! One small file per client in `lock_clients/` of the target's directory, created by the client's first lock
//! request or change since its connect and removed when it disconnects or is evicted. Both are rare, so both are made
//! durable. An evicted client is not in the list: it may not replay its locks. Format: `docs/formats/ost.md`.

use nacre_dlm::Expected;
use nacre_env::sync::Mutex;
use nacre_ondisk::ClientRecord;
use nacre_rpc::Export;
use nacre_store::object::LOCK_CLIENTS;
use nacre_types::{ClientUuid, Nid, Timestamp};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// See the [module documentation](self).
pub(crate) struct LockClients {
    dir: PathBuf,
    /// Clients that have a file.
    noted: Mutex<HashSet<ClientUuid>>,
}

impl LockClients {
    /// Reads the clients that had locks in the last run.
    pub(crate) fn open(target_dir: &Path) -> io::Result<(LockClients, Expected)> {
        let dir = target_dir.join(LOCK_CLIENTS);
        let mut expected = Expected::new();
        match fs::read_dir(&dir) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    let Some(client) = entry.file_name().to_str().and_then(client_of) else { continue };
                    // The name identifies the client, even if the content is torn.
                    let record = ClientRecord::decode(&fs::read(entry.path())?).ok();
                    expected.insert(client, record.and_then(|record| record.process));
                }
            }
            // The directory is created with the first file in it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let noted = Mutex::new(expected.keys().copied().collect());
        Ok((LockClients { dir, noted }, expected))
    }

    /// Adds a client that is about to get a lock, or to keep a change. A client in this process ends with it, so it is not stored.
    pub(crate) fn add(&self, export: &Export) -> io::Result<()> {
        if export.nid == Nid::Lo {
            return Ok(());
        }
        let mut noted = self.noted.lock();
        // Checked under the mutex that `remove` takes, so that a client that has ended is not added after its
        // removal.
        if noted.contains(&export.client) || export.has_ended() {
            return Ok(());
        }
        let connected = Timestamp::from(nacre_env::clock::wall());
        let record = ClientRecord { connected, boot_count: 0, process: export.process };
        match fs::create_dir(&self.dir) {
            Ok(()) => sync_parent(&self.dir)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let mut file = File::create(self.path_of(&export.client))?;
        file.write_all(&record.encode())?;
        file.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        noted.insert(export.client);
        Ok(())
    }

    /// Removes a client that has no locks any more.
    pub(crate) fn remove(&self, client: &ClientUuid) -> io::Result<()> {
        let mut noted = self.noted.lock();
        if noted.remove(client) {
            fs::remove_file(self.path_of(client))?;
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }

    fn path_of(&self, client: &ClientUuid) -> PathBuf {
        self.dir.join(client.to_string())
    }
}

/// Makes a directory entry durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Returns the client whose UUID is the name of a file.
fn client_of(name: &str) -> Option<ClientUuid> {
    let mut uuid = [0u8; 16];
    let digits: Vec<char> = name.chars().filter(|c| *c != '-').collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != uuid.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in uuid.iter_mut().zip(pairs) {
        *byte = ((high.to_digit(16)? << 4) | low.to_digit(16)?) as u8;
    }
    let client = ClientUuid(uuid);
    (client.to_string() == name).then_some(client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rpc::NoCallbacks;
    use std::sync::Arc;

    fn export(number: u8, nid: Nid) -> Export {
        let process = Some(nacre_env::own_process());
        Export::new(ClientUuid([number; 16]), nid, process, Arc::new(NoCallbacks))
    }

    #[test]
    fn clients_are_remembered_from_their_first_lock_until_they_leave() {
        let dir = tempfile::tempdir().unwrap();
        let remote: Nid = "10.0.0.9@tcp".parse().unwrap();
        let (clients, expected) = LockClients::open(dir.path()).unwrap();
        assert!(expected.is_empty());
        let (stays, leaves) = (export(1, remote), export(2, remote));
        for export in [&stays, &stays, &leaves, &export(3, Nid::Lo)] {
            clients.add(export).unwrap();
        }
        clients.remove(&leaves.client).unwrap();
        clients.remove(&leaves.client).unwrap();
        let gone = export(4, remote);
        gone.end();
        clients.add(&gone).unwrap();
        let (_, expected) = LockClients::open(dir.path()).unwrap();
        assert_eq!(expected, Expected::from([(stays.client, stays.process)]));
    }

    #[test]
    fn a_torn_file_still_names_its_client_and_strange_ones_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(LOCK_CLIENTS)).unwrap();
        let client = ClientUuid([0xab; 16]);
        fs::write(dir.path().join(LOCK_CLIENTS).join(client.to_string()), [1]).unwrap();
        fs::write(dir.path().join(LOCK_CLIENTS).join("notes"), [1]).unwrap();
        let (clients, expected) = LockClients::open(dir.path()).unwrap();
        assert_eq!(expected, Expected::from([(client, None)]));
        clients.remove(&client).unwrap();
        assert!(LockClients::open(dir.path()).unwrap().1.is_empty());
    }
}
