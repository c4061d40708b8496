//! A thread that gathers figures for all readers.

use crate::sample::Snapshot;
use crate::text::{Names, render};
use hyper::body::Bytes;
use nacre_env::clock::Instant;
use nacre_env::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Age up to which a snapshot serves further readers: bounds the work that any number of them causes.
const AGE_MAX: Duration = Duration::from_millis(250);

/// Gathers the figures of all processes; runs on the thread of the sampler, and may wait for processes.
pub type Gather = Box<dyn FnMut() -> Snapshot + Send>;

enum Ask {
    Snapshot(oneshot::Sender<Arc<Snapshot>>),
    Text(Option<String>, Names, oneshot::Sender<Bytes>),
}

/// Access to the thread, which ends with the last of these.
#[derive(Clone)]
pub struct Sampler {
    asks: Sender<Ask>,
}

/// The state of the thread.
struct Work {
    gather: Gather,
    /// The last snapshot, and when it was gathered.
    last: Option<(Instant, Arc<Snapshot>)>,
    /// Texts of the last snapshot.
    texts: HashMap<(Option<String>, Names), Bytes>,
}

impl Sampler {
    /// Starts the thread. With `interval`, it gathers that often also without readers; `on_snapshot` sees
    /// each snapshot.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        gather: Gather,
        interval: Option<Duration>,
        mut on_snapshot: impl FnMut(&Arc<Snapshot>) + Send + 'static,
    ) -> io::Result<Sampler> {
        let (asks, receiver) = channel();
        let mut work = Work { gather, last: None, texts: HashMap::new() };
        let serve = move || {
            let mut due = Instant::now();
            loop {
                let ask = match interval {
                    None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    Some(_) => receiver.recv_timeout(due.saturating_duration_since(Instant::now())),
                };
                match ask {
                    Ok(ask) => {
                        work.answer(ask, &mut on_snapshot);
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        due = Instant::now() + interval.unwrap_or_default();
                        work.snapshot(&mut on_snapshot);
                    }
                }
            }
        };
        nacre_env::thread::Builder::new().name("sampler".into()).spawn(serve)?;
        Ok(Sampler { asks })
    }

    /// Returns figures that are at most 250 ms old; `None` if the thread has ended.
    pub async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (sender, receiver) = oneshot::channel();
        self.asks.send(Ask::Snapshot(sender)).ok()?;
        receiver.await.ok()
    }

    /// Returns the text of such figures, of all processes or one.
    pub async fn text(&self, process: Option<String>, names: Names) -> Option<Bytes> {
        let (sender, receiver) = oneshot::channel();
        self.asks.send(Ask::Text(process, names, sender)).ok()?;
        receiver.await.ok()
    }
}

impl Work {
    fn answer(&mut self, ask: Ask, on_snapshot: &mut impl FnMut(&Arc<Snapshot>)) {
        let snapshot = self.snapshot(on_snapshot);
        // A reader that has left needs no answer.
        match ask {
            Ask::Snapshot(reply) => drop(reply.send(snapshot)),
            Ask::Text(process, names, reply) => {
                // As many texts as there are processes.
                let is_known = |name: &String| {
                    snapshot.processes.iter().any(|process| process.name == *name)
                        || snapshot.missing.iter().any(|(missing, _)| missing == name)
                };
                if process.as_ref().is_some_and(|name| !is_known(name)) {
                    return;
                }
                let text = self.texts.entry((process, names)).or_insert_with_key(|(process, names)| {
                    Bytes::from(render(&snapshot, process.as_deref(), *names).unwrap_or_default())
                });
                drop(reply.send(text.clone()));
            }
        }
    }

    fn snapshot(&mut self, on_snapshot: &mut impl FnMut(&Arc<Snapshot>)) -> Arc<Snapshot> {
        if let Some((at, snapshot)) = &self.last
            && at.elapsed() < AGE_MAX
        {
            return snapshot.clone();
        }
        let start = Instant::now();
        let mut snapshot = (self.gather)();
        snapshot.took_s = start.elapsed().as_secs_f64();
        let snapshot = Arc::new(snapshot);
        self.texts.clear();
        on_snapshot(&snapshot);
        self.last = Some((Instant::now(), snapshot.clone()));
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn many_readers_cost_one_gathering() {
        let count = Arc::new(AtomicU64::new(0));
        let gathered = count.clone();
        let gather = move || {
            gathered.fetch_add(1, Ordering::Relaxed);
            Snapshot { fsname: "x".to_owned(), ..Snapshot::default() }
        };
        let sampler = Sampler::start(Box::new(gather), None, |_| ()).expect("a thread");
        let start = Instant::now();
        for _ in 0..100 {
            assert_eq!(wait(sampler.snapshot()).expect("figures").fsname, "x");
            assert!(wait(sampler.text(None, Names::Own)).expect("a text").ends_with(b"# EOF\n"));
        }
        assert!(wait(sampler.text(Some("nosuch".to_owned()), Names::Own)).is_none());
        let most = 1 + start.elapsed().as_millis() / AGE_MAX.as_millis();
        assert!(u128::from(count.load(Ordering::Relaxed)) <= most);
    }
}
