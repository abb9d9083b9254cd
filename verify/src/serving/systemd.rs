//! A systemd unit that serves a model.

use super::launch::Launch;
use super::quote::{comment, systemd};
use super::warm_up::{START_SECONDS, script};

/// The unit's text. The server is looked for in `/opt/ENGINE/bin`, then in the usual places.
pub fn unit(launch: &Launch) -> String {
    let engine = launch.engine;
    let home = engine.title().to_lowercase();
    let program: Vec<String> = engine.program(&launch.model).iter().map(|w| systemd(w)).collect();
    let mut exec = vec![format!("ExecStart=/usr/bin/env {}", program.join(" "))];
    for f in &launch.flags {
        // A comment between continued lines is left out by systemd.
        exec.push(format!("# {}", comment(&f.reason)));
        let value = f.value.as_deref().map(|v| format!(" {}", systemd(v))).unwrap_or_default();
        exec.push(format!("    {}{value}", f.name));
    }
    if !launch.extra.is_empty() {
        let extra: Vec<_> = launch.extra.iter().map(|w| systemd(w)).collect();
        exec.push(format!("    {}", extra.join(" ")));
    }
    let last = exec.len() - 1;
    let exec: Vec<String> = exec
        .into_iter()
        .enumerate()
        .map(|(i, line)| if line.starts_with('#') || i == last { line } else { format!("{line} \\") })
        .collect();
    let base = format!("http://127.0.0.1:{}", launch.port);
    format!(
        "# {title} {version}
[Unit]
Description={title} serving {name}
After=network-online.target
Wants=network-online.target

[Service]
# The server's own environment comes first
Environment=PATH=/opt/{home}/bin:/usr/local/bin:/usr/bin:/bin
# Nothing is fetched: the folder is all that is served
Environment=HF_HUB_OFFLINE=1
{exec}
# Counts as started once it is ready and has answered a first request
ExecStartPost=/bin/sh -c {warm}
TimeoutStartSec={START_SECONDS}
Restart=on-failure
RestartSec=10
# A user of its own, which must be able to read the folder; /tmp and /home are not its own
DynamicUser=yes
# Compiled kernels are kept between starts
CacheDirectory={home}
Environment=HOME=%C/{home} XDG_CACHE_HOME=%C/{home}

[Install]
WantedBy=multi-user.target
",
        title = engine.title(),
        version = engine.version(),
        name = comment(&launch.served_name).replace('%', "%%"),
        exec = exec.join("\n"),
        warm = systemd(&script(launch, &base)),
    )
}
