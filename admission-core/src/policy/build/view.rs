use super::Checker;
use crate::config::ViewConfig;
use crate::units::Millis;

/// Longer waits are mistakes in writing.
const LONGEST: Millis = Millis(60_000);

pub(super) fn check(view: &ViewConfig, check: &mut Checker<'_>) {
    let Some(pull) = &view.pull else { return };
    if pull.cluster.is_empty() {
        check.problem("view.pull.cluster", "must name a cluster of the proxy");
    }
    if !pull.path.starts_with('/') || !pull.path.bytes().all(|byte| byte.is_ascii_graphic()) {
        check.problem("view.pull.path", "must be a path, such as \"/v1/view\"");
    }
    let authority = pull.authority.as_deref();
    if authority.is_some_and(|host| host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic())) {
        check.problem("view.pull.authority", "must be a host, such as \"sluice-sidecar:9090\"");
    }
    let token = pull.token.reveal();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        check.problem("view.pull.token", "must have visible ASCII characters and nothing else");
    }
    if pull.wait > LONGEST {
        check.problem("view.pull.wait", format!("must be at most {LONGEST}"));
    }
    if pull.timeout == Millis(0) || pull.timeout > LONGEST {
        check.problem("view.pull.timeout", format!("must be more than nothing and at most {LONGEST}"));
    }
}
