//! Creation and sync of objects.

use nacre_env::clock::Instant;
use nacre_store::object::ObjectStore;
use nacre_types::Fid;

/// Creates objects, writes 4 KiB into each and syncs it; returns objects per second.
pub fn create_and_sync(store: &dyn ObjectStore, first: u32, objects: u32, threads: u32) -> f64 {
    let start = Instant::now();
    nacre_env::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in (thread..objects).step_by(threads as usize) {
                    let object = Fid::ost_object(0, first + number);
                    store.write(object, 0, &[7; 4096]).expect("written");
                    store.sync(object).expect("synced");
                }
            });
        }
    });
    f64::from(objects) / start.elapsed().as_secs_f64()
}
