//! Distribution of the records of objects over threads.

/// Parameters of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) objects: u32,
    pub(super) threads: u32,
    /// Size of a record in bytes.
    pub(super) record: u64,
    /// Size of an object in bytes, a multiple of `record`.
    pub(super) size: u64,
}

impl Case {
    /// Returns the number of records of one object.
    pub(super) fn records(&self) -> u64 {
        self.size / self.record
    }

    /// Returns the size of all objects together in bytes.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.objects) * self.size
    }

    /// Returns the work of one thread, as objects and offsets. With fewer threads than objects, each thread
    /// alternates between several objects; with more, the threads of an object alternate in it.
    pub(super) fn work(&self, thread: u32) -> impl Iterator<Item = (u32, u64)> + use<> {
        let case = *self;
        let (first, sharers, rank) = match case.threads <= case.objects {
            true => (thread, 1, 0),
            false => {
                let object = thread % case.objects;
                let sharers = (case.threads - object).div_ceil(case.objects);
                (object, sharers, thread / case.objects)
            }
        };
        let step = case.threads.min(case.objects);
        (u64::from(rank)..case.records()).step_by(sharers as usize).flat_map(move |record| {
            let objects = (first..case.objects).step_by(step as usize);
            // A thread that shares an object has no other one.
            let objects =
                objects.take(if sharers > 1 || case.threads > case.objects { 1 } else { usize::MAX });
            objects.map(move |object| (object, record * case.record))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_record_belongs_to_one_thread() {
        for objects in 1..9 {
            for threads in 1..20 {
                let case = Case { objects, threads, record: 4096, size: 7 * 4096 };
                let mut seen = HashSet::new();
                for thread in 0..threads {
                    for place in case.work(thread) {
                        assert!(place.0 < objects && place.1 < case.size);
                        assert!(seen.insert(place), "{place:?} twice with {objects} and {threads}");
                    }
                }
                assert_eq!(seen.len() as u64 * case.record, case.bytes(), "{objects} and {threads}");
            }
        }
    }

    #[test]
    fn objects_of_one_thread_take_turns() {
        let case = Case { objects: 3, threads: 2, record: 1, size: 2 };
        assert_eq!(case.work(0).collect::<Vec<_>>(), [(0, 0), (2, 0), (0, 1), (2, 1)]);
        assert_eq!(case.work(1).collect::<Vec<_>>(), [(1, 0), (1, 1)]);
    }
}
