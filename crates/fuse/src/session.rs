//! The life of a mount: mount, negotiate, serve, unmount.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::abi::*;
use crate::config::{ProtocolOptions, SessionConfig, Transport, TransportChoice};
use crate::device::Device;
use crate::error::Error;
use crate::handler::{Handler, InitConfig};
use crate::mount::{Mounted, Unmount, mount};
use crate::notify::Notifier;
use crate::request::{InitRequest, Operation, Raw, parse};
use crate::transport::{Availability, Channel, Negotiated, availability};
use rustix::io::Errno;
use rustix::param::page_size;

/// Longest time that the kernel takes to end a connection after its last unmount; more means that it was not
/// the last.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A mounted file system whose requests are served.
///
/// It ends with an unmount, by [`Session::unmount`] or from outside, and when it is dropped: then it is
/// unmounted by force, requests in flight are interrupted, and the drop waits for their handlers.
pub struct Session {
    mounted: Mounted,
    /// Unmounted from its mount point, though copies in other mount namespaces may be left.
    detached: AtomicBool,
    channel: Arc<Channel>,
    notifier: Notifier,
    negotiated: InitConfig,
}

impl Session {
    /// Mounts and starts to serve. The file system is usable on return.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing stays mounted then.
    pub fn mount(config: SessionConfig, handler: Arc<dyn Handler>) -> Result<Session, Error> {
        let uring = availability(config.transport);
        if let (TransportChoice::Uring, Availability::No(reason)) = (config.transport, uring) {
            return Err(Error::NoUring(reason));
        }
        match Session::mount_over(&config, &handler, uring == Availability::Yes) {
            Err(Error::System { action, source })
                if config.transport == TransportChoice::Auto && uring == Availability::Yes =>
            {
                log::warn!("{action} failed ({source}); mounting over /dev/fuse instead");
                Session::mount_over(&config, &handler, false)
            }
            outcome => outcome,
        }
    }

    fn mount_over(config: &SessionConfig, handler: &Arc<dyn Handler>, uring: bool) -> Result<Session, Error> {
        let (device, mounted) = mount(config)?;
        match Session::start(config, handler.clone(), device, uring) {
            Ok((channel, notifier, mut negotiated)) => {
                if negotiated.max_readahead < config.protocol.max_readahead
                    && mounted.set_read_ahead(config.protocol.max_readahead)
                {
                    negotiated.max_readahead = config.protocol.max_readahead;
                }
                Ok(Session { mounted, detached: AtomicBool::new(false), channel, notifier, negotiated })
            }
            Err(error) => {
                // The first error matters; if this fails too, the mount is dead and the next one clears it.
                let _ = mounted.unmount(Unmount::Force);
                Err(error)
            }
        }
    }

    fn start(
        config: &SessionConfig,
        handler: Arc<dyn Handler>,
        device: Device,
        uring: bool,
    ) -> Result<(Arc<Channel>, Notifier, InitConfig), Error> {
        let device = Arc::new(device);
        let notifier = Notifier::new(&device);
        handler.attached(&notifier);
        let negotiated = negotiate(config, handler.as_ref(), &device, uring)?;
        let payload_max = payload_max(negotiated.max_write);
        let setxattr_ext = negotiated.flags.contains(InitFlags::SETXATTR_EXT);
        let channel = Channel::new(handler, device, Negotiated { setxattr_ext, payload_max });
        let started = match negotiated.transport {
            Transport::Uring => channel.start_uring(&config.threads),
            Transport::Dev => channel.start_dev(&config.threads),
        };
        if started.is_err() {
            channel.abandon();
        }
        channel.started();
        if let Err(error) = started {
            channel.join();
            return Err(error);
        }
        log::info!("mounted on {} over {}", config.mount_point.display(), negotiated.transport);
        Ok((channel, notifier, negotiated))
    }

    /// Returns the transport in use.
    pub fn transport(&self) -> Transport {
        self.negotiated.transport
    }

    /// Returns the result of the negotiation with the kernel.
    pub fn negotiated(&self) -> &InitConfig {
        &self.negotiated
    }

    /// Returns the mount point, without symbolic links.
    pub fn mount_point(&self) -> &Path {
        self.mounted.path()
    }

    /// Returns a handle for notifications.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the number of existing threads, blocked and parked ones included.
    pub fn thread_count(&self) -> usize {
        self.channel.thread_count()
    }

    /// Returns true if the session has ended.
    pub fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }

    /// Unmounts. `Clean` and `Force` return when every thread has ended; after `Lazy` the session continues
    /// until the last open file is closed, see [`Session::join`].
    ///
    /// # Errors
    ///
    /// For `Clean`: [`Error::Busy`] while files are open, [`Error::Elsewhere`] if it was unmounted but other
    /// mount namespaces have copies of the mount. The session then continues, and `Force` ends it.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.channel.has_ended() {
            self.channel.join();
            // Ended from outside: an unmount, or an abort that leaves a dead mount to clear.
            return if self.mounted.is_dead() { self.mounted.unmount(Unmount::Lazy) } else { Ok(()) };
        }
        if !self.detached.load(Ordering::SeqCst) {
            self.mounted.unmount(how)?;
            self.detached.store(true, Ordering::SeqCst);
        }
        match how {
            Unmount::Clean => {
                if !self.channel.ends_within(END_TIMEOUT) {
                    return Err(Error::Elsewhere(self.mounted.path().to_owned()));
                }
                self.channel.join();
            }
            Unmount::Force => {
                self.channel.stop();
                self.channel.join();
            }
            Unmount::Lazy => {}
        }
        Ok(())
    }

    /// Waits until the session has ended by an unmount or an abort of the connection.
    pub fn join(&self) -> Result<(), Error> {
        self.channel.join();
        if self.mounted.is_dead() { self.mounted.unmount(Unmount::Lazy) } else { Ok(()) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.channel.has_ended() {
            self.channel.join();
            if self.mounted.is_dead() {
                let _ = self.mounted.unmount(Unmount::Lazy);
            }
            return;
        }
        if let Err(error) = self.unmount(Unmount::Force) {
            log::warn!("{error}");
            self.channel.stop();
            self.channel.join();
        }
    }
}

/// Returns the space for the data of the largest request in bytes, as the kernel counts it for io_uring.
fn payload_max(max_write: u32) -> usize {
    const READ_BUFFER_MIN: usize = 8192;
    (max_write as usize).next_multiple_of(page_size()).max(READ_BUFFER_MIN)
}

/// Reads INIT and answers it.
fn negotiate(
    config: &SessionConfig,
    handler: &dyn Handler,
    device: &Device,
    uring: bool,
) -> Result<InitConfig, Error> {
    let (header, kernel) = read_init(device)?;
    let options = &config.protocol;
    let mut flags = wanted_flags(options) & kernel.flags;
    let uring = uring && kernel.flags.contains(InitFlags::OVER_IO_URING);
    flags.set(InitFlags::OVER_IO_URING, uring);
    let mut negotiated = InitConfig {
        minor: kernel.minor.min(KERNEL_MINOR_VERSION),
        flags,
        max_write: options.max_write,
        max_readahead: options.max_readahead.min(kernel.max_readahead),
        max_background: options.max_background,
        congestion_threshold: options.congestion_threshold,
        time_granularity_ns: options.time_granularity_ns,
        request_timeout: None,
        transport: if uring { Transport::Uring } else { Transport::Dev },
    };
    handler.init(&kernel, &mut negotiated);
    settle(&mut negotiated, &kernel, options);
    if config.transport == TransportChoice::Uring && negotiated.transport != Transport::Uring {
        return Err(Error::NoUring("the kernel did not offer it for this mount"));
    }
    let out = init_out(&negotiated);
    device.send(0, header.unique, &[out.as_bytes()]).map_err(Error::system("answering INIT"))?;
    Ok(negotiated)
}

/// Enforces the limits on a handler's choices.
fn settle(negotiated: &mut InitConfig, kernel: &InitRequest, options: &ProtocolOptions) {
    negotiated.flags &= kernel.flags;
    // The second half of the flags is sent only with this flag.
    let extended = negotiated.flags.bits() >> 32 != 0 && kernel.flags.contains(InitFlags::INIT_EXT);
    negotiated.flags.set(InitFlags::INIT_EXT, extended);
    if !negotiated.flags.contains(InitFlags::OVER_IO_URING) {
        negotiated.transport = Transport::Dev;
    }
    negotiated.max_write = negotiated.max_write.clamp(4096, options.max_write);
    if !negotiated.flags.contains(InitFlags::MAX_PAGES) {
        negotiated.max_write = negotiated.max_write.min(128 << 10);
    }
    negotiated.max_readahead = negotiated.max_readahead.min(kernel.max_readahead);
    negotiated.max_background = negotiated.max_background.max(1);
    negotiated.congestion_threshold = negotiated.congestion_threshold.clamp(1, negotiated.max_background);
    negotiated.time_granularity_ns = negotiated.time_granularity_ns.clamp(1, 1_000_000_000);
}

fn init_out(negotiated: &InitConfig) -> InitOut {
    let flags = negotiated.flags;
    let timeout =
        negotiated.request_timeout.map_or(0, |timeout| timeout.max(Duration::from_secs(1)).as_secs());
    let pages = (negotiated.max_write as usize).div_ceil(page_size());
    InitOut {
        major: KERNEL_VERSION,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: flags.bits() as u32,
        max_background: negotiated.max_background,
        congestion_threshold: negotiated.congestion_threshold,
        max_write: negotiated.max_write,
        time_gran: negotiated.time_granularity_ns,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: (flags.bits() >> 32) as u32,
        max_stack_depth: u32::from(flags.contains(InitFlags::PASSTHROUGH)),
        request_timeout: u16::try_from(timeout).unwrap_or(u16::MAX),
        ..InitOut::default()
    }
}

fn read_init(device: &Device) -> Result<(InHeader, InitRequest), Error> {
    const HEADER: usize = size_of::<InHeader>();
    // The kernel refuses reads into buffers of less than 8 KiB.
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => continue,
            Err(source) => return Err(Error::System { action: "reading INIT", source }),
        };
        let header = InHeader::read_from(&buffer[..length]).ok_or(Error::Handshake)?;
        let (argument, payload) =
            buffer[HEADER..length].split_at((length - HEADER).min(size_of::<crate::abi::InitIn>()));
        let request = parse(&Raw { header, argument, payload }, true).map_err(|_| Error::Handshake)?;
        let Operation::Init(kernel) = request.op else { return Err(Error::Handshake) };
        if kernel.major > KERNEL_VERSION {
            // A newer kernel asks again with this version.
            let out = InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() };
            device.send(0, header.unique, &[out.as_bytes()]).map_err(Error::system("answering INIT"))?;
            continue;
        }
        if kernel.major < KERNEL_VERSION || kernel.minor < KERNEL_MINOR_VERSION_MIN {
            let _ = device.send(-Errno::PROTO.raw_os_error(), header.unique, &[]);
            return Err(Error::Protocol { major: kernel.major, minor: kernel.minor });
        }
        return Ok((header, kernel));
    }
}

/// Returns the flags for the options, offered by the kernel or not.
fn wanted_flags(options: &ProtocolOptions) -> InitFlags {
    let mut flags = InitFlags::ASYNC_READ
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::MAX_PAGES
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::HAS_EXPIRE_ONLY
        | InitFlags::DIRECT_IO_ALLOW_MMAP;
    let inval =
        if options.auto_inval_data { InitFlags::AUTO_INVAL_DATA } else { InitFlags::EXPLICIT_INVAL_DATA };
    flags |= inval;
    for (wanted, flag) in [
        (options.readdirplus, InitFlags::DO_READDIRPLUS),
        (options.readdirplus && options.readdirplus_auto, InitFlags::READDIRPLUS_AUTO),
        (options.posix_locks, InitFlags::POSIX_LOCKS),
        (options.flock_locks, InitFlags::FLOCK_LOCKS),
        (options.export_support, InitFlags::EXPORT_SUPPORT),
        (!options.export_support, InitFlags::NO_EXPORT_SUPPORT),
        (options.no_open, InitFlags::NO_OPEN_SUPPORT | InitFlags::NO_OPENDIR_SUPPORT),
        (options.cache_symlinks, InitFlags::CACHE_SYMLINKS),
        (options.writeback_cache, InitFlags::WRITEBACK_CACHE),
        (options.passthrough, InitFlags::PASSTHROUGH),
        // Enables default_permissions.
        (options.kernel_acls, InitFlags::POSIX_ACL),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    flags
}

#[cfg(test)]
mod tests;
