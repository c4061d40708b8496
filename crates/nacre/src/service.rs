//! Reports to the service manager that started this process, as sd_notify(3) defines them. Without
//! `NOTIFY_SOCKET` in the environment nothing is sent.

use sd_notify::NotifyState;

/// Environment variable that names the manager's socket. Processes in the background must not inherit it:
/// their state is not that of the service.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Reports that everything runs.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Reports a step of the start.
pub fn status(text: &str) {
    send(&[NotifyState::Status(&one_line(text))]);
}

/// Reports that the process stops on request.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// A line break would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("the service manager gets no report: {error}");
    }
}
