//! The host: kernel, FUSE, limits, CPUs and clocks.

use super::{Change, Finding, Machine};
use crate::cli::status::size;
use std::process::Command;

/// Oldest kernel that is supported, and the first one with FUSE over io_uring.
const KERNEL_MIN: (u32, u32) = (5, 15);
const KERNEL_URING: (u32, u32) = (6, 14);
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// Idle states that take longer to leave, in microseconds, delay each request.
const IDLE_EXIT_MAX_US: u64 = 100;
/// Available memory below which the kernel starts to reclaim caches under load.
const MEMORY_MIN_BYTES: u64 = 1 << 30;

/// Examines the host.
pub fn examine(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(kernel(machine));
    findings.extend(fuse(machine));
    findings.extend(io_uring(machine));
    if !rustix::process::geteuid().is_root() {
        findings.extend(unprivileged(machine));
    }
    findings.extend(memory(machine));
    findings.extend(governor(machine));
    findings.extend(idle_states(machine));
    findings.extend(clock_source(machine));
    findings.extend(iommu(machine));
    findings.push(clock());
    findings
}

/// Returns major and minor version of the kernel.
fn version(machine: &Machine) -> Option<((u32, u32), String)> {
    let release = machine.read("/proc/sys/kernel/osrelease")?;
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let version = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((version, release))
}

fn kernel(machine: &Machine) -> Option<Finding> {
    let (found, release) = version(machine)?;
    Some(match found {
        found if found < KERNEL_MIN => {
            Finding::error("kernel", format!("Linux {release} is older than 5.15, the oldest that is tested"))
                .remedy("install a newer kernel")
        }
        found if found < KERNEL_URING => Finding::note(
            "kernel",
            format!("Linux {release} has no FUSE over io_uring; mounts use /dev/fuse"),
        )
        .remedy("Linux 6.14 or newer has it, and serves small requests faster"),
        _ => Finding::ok("kernel", format!("Linux {release}")),
    })
}

fn fuse(machine: &Machine) -> Option<Finding> {
    if !machine.path("/dev/fuse").exists() {
        return Some(
            Finding::error("fuse", "/dev/fuse does not exist: nothing can be mounted")
                .remedy("modprobe fuse; in a container: pass /dev/fuse into it"),
        );
    }
    let (found, _) = version(machine)?;
    match machine.read(ENABLE_URING).as_deref() {
        Some("Y" | "1") => Some(Finding::ok("fuse", "FUSE over io_uring is enabled")),
        Some(_) => Some(
            Finding::warning("fuse", "FUSE over io_uring is disabled; new mounts use the slower /dev/fuse")
                .change(Change::Write { path: machine.path(ENABLE_URING), value: "Y".to_owned() }),
        ),
        None if found >= KERNEL_URING => Some(
            Finding::note(
                "fuse",
                "the kernel is built without FUSE over io_uring, or the module is not loaded",
            )
            .remedy("modprobe fuse"),
        ),
        None => None,
    }
}

fn io_uring(machine: &Machine) -> Option<Finding> {
    match machine.number("/proc/sys/kernel/io_uring_disabled")? {
        0 => Some(Finding::ok("io_uring", "io_uring is permitted")),
        1 if rustix::process::geteuid().is_root() => {
            Some(Finding::ok("io_uring", "io_uring is permitted for root"))
        }
        value => Some(
            Finding::warning("io_uring", format!("io_uring is forbidden (kernel.io_uring_disabled={value})"))
                .remedy("sysctl -w kernel.io_uring_disabled=0"),
        ),
    }
}

/// Examines what users other than root need for a mount.
fn unprivileged(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let has_program = Command::new("fusermount3").arg("--version").output().is_ok();
    if !has_program {
        findings.push(
            Finding::error("fuse", "fusermount3 is missing: only root can mount")
                .remedy("apt-get install fuse3, or the package of that name elsewhere"),
        );
    }
    let allowed = machine.read("/etc/fuse.conf").unwrap_or_default();
    if !allowed.lines().any(|line| line.trim() == "user_allow_other") {
        findings.push(
            Finding::note("fuse", "mounts of this user are visible to this user only")
                .remedy("as root: echo user_allow_other >> /etc/fuse.conf"),
        );
    }
    findings
}

fn memory(machine: &Machine) -> Option<Finding> {
    let text = machine.read("/proc/meminfo")?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    let (total, available) = (value("MemTotal:")?, value("MemAvailable:")?);
    let text = format!("{} of {} memory are available", size(available), size(total));
    Some(match available < MEMORY_MIN_BYTES {
        true => Finding::warning("memory", text).remedy(
            "end other programs, or lower what mounts cache: lctl set_param 'llite.*.max_cached_mb=256'",
        ),
        false => Finding::ok("memory", text),
    })
}

fn governor(machine: &Machine) -> Option<Finding> {
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    let governor = machine.read(path)?;
    // Drivers that choose frequencies in hardware call the balanced choice 'powersave'.
    let driver = machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").unwrap_or_default();
    let is_slow = governor == "powersave" && !driver.contains("pstate") || governor == "conservative";
    let text = format!("the frequency governor of the CPUs is '{governor}' ({driver})");
    Some(match is_slow {
        true => Finding::warning("cpu", format!("{text}: requests begin on slow CPUs"))
            .remedy("cpupower frequency-set -g performance"),
        false => Finding::ok("cpu", text),
    })
}

fn idle_states(machine: &Machine) -> Option<Finding> {
    let base = "/sys/devices/system/cpu/cpu0/cpuidle";
    let states = machine.list(base);
    let deep = states.iter().filter_map(|state| {
        let latency = machine.number(&format!("{base}/{state}/latency"))?;
        let is_used = machine.number(&format!("{base}/{state}/disable")).unwrap_or(0) == 0;
        let name = machine.read(&format!("{base}/{state}/name"))?;
        (is_used && latency > IDLE_EXIT_MAX_US).then_some((latency, name))
    });
    let (latency, name) = deep.max()?;
    Some(
        Finding::note("cpu", format!("idle CPUs take {latency} us to wake up from state {name}"))
            .remedy(format!("for lowest latency: cpupower idle-set -D {IDLE_EXIT_MAX_US}")),
    )
}

fn clock_source(machine: &Machine) -> Option<Finding> {
    let base = "/sys/devices/system/clocksource/clocksource0";
    let source = machine.read(&format!("{base}/current_clocksource"))?;
    let is_fast =
        matches!(source.as_str(), "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter");
    let text = format!("the clock source is {source}");
    Some(match is_fast {
        true => Finding::ok("clock", text),
        false => Finding::warning("clock", format!("{text}: each look at the clock is a system call"))
            .remedy(format!(
                "if 'tsc' is listed in {base}/available_clocksource: echo tsc > {base}/current_clocksource"
            )),
    })
}

fn iommu(machine: &Machine) -> Option<Finding> {
    let groups = machine.list("/sys/kernel/iommu_groups");
    let strict = groups.iter().filter(|group| {
        machine.read(&format!("/sys/kernel/iommu_groups/{group}/type")).as_deref() == Some("DMA")
    });
    match strict.count() {
        0 => None,
        count => Some(
            Finding::note(
                "iommu",
                format!("{count} device groups translate DMA strictly, which costs fast devices CPU"),
            )
            .remedy("kernel parameter iommu.strict=0, or iommu=pt where devices are trusted"),
        ),
    }
}

/// Examines whether the clock is synchronised: mtimes of several hosts are compared, and certificates expire.
fn clock() -> Finding {
    // SAFETY: all bits zero are a valid `timex`: it has only integers, and mode 0 changes nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call, which fills the structure in.
    let state = unsafe { libc::adjtimex(&mut timex) };
    let is_synchronised = state >= 0 && timex.status & libc::STA_UNSYNC == 0;
    match is_synchronised {
        true => Finding::ok(
            "clock",
            format!("the clock is synchronised, error at most {} ms", timex.maxerror / 1000),
        ),
        false => Finding::note("clock", "the clock of this host is not synchronised by NTP")
            .remedy("with several hosts: systemctl enable --now systemd-timesyncd, or chrony"),
    }
}
