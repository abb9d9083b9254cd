//! A compose file that serves a model.

use super::launch::Launch;
use super::quote::{comment, container, yaml};
use super::warm_up::{HEALTH, START_SECONDS, script};

/// The file's text. `folder` is the model's on the host; the launch line must be that of `/models/NAME`.
pub fn compose(launch: &Launch, folder: &str) -> String {
    let engine = launch.engine;
    let image = engine.image();
    let port = launch.port;
    let health = format!("curl -sf http://127.0.0.1:{port}{HEALTH}");
    // compose replaces `$` itself.
    let warm = script(launch, &format!("http://server:{port}")).replace('$', "$$");
    format!(
        "# {title} {version} serving {name}
services:
  server:
    image: {image}
    entrypoint: {entrypoint}
    command:
{command}
    environment:
      # Nothing is fetched: the folder is all that is served
      HF_HUB_OFFLINE: \"1\"
    volumes:
      - type: bind
        source: {source}
        target: {target}
        read_only: true
    ports:
      - \"{port}:{port}\"
    # Shared memory for the processes of a server with several GPUs
    ipc: host
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: {gpus}
              capabilities: [gpu]
    healthcheck:
      test: [\"CMD-SHELL\", {health}]
      interval: 10s
      timeout: 5s
      retries: 3
      # Loading does not count as failing
      start_period: {START_SECONDS}s
    restart: unless-stopped
  # One request once the server is ready: kernels are compiled before the first client comes
  warm-up:
    image: {image}
    entrypoint: [\"/bin/sh\", \"-c\"]
    command: [{warm}]
    depends_on:
      server:
        condition: service_healthy
    restart: \"no\"
",
        title = engine.title(),
        version = engine.version(),
        name = comment(&launch.served_name),
        entrypoint = list(&engine.program(&launch.model)),
        command = arguments(launch, 6),
        source = yaml(&folder.replace('$', "$$")),
        target = yaml(&launch.model.replace('$', "$$")),
        gpus = launch.gpus,
        health = yaml(&health),
        warm = yaml(&warm),
    )
}

/// A list on one line.
pub(super) fn list(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|w| container(w)).collect::<Vec<_>>().join(", "))
}

/// The flags as items of a list, each below its reason.
pub(super) fn arguments(launch: &Launch, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let mut lines = Vec::new();
    for f in &launch.flags {
        lines.push(format!("{pad}# {}", comment(&f.reason)));
        lines.push(format!("{pad}- {}", yaml(f.name)));
        lines.extend(f.value.iter().map(|v| format!("{pad}- {}", container(v))));
    }
    lines.extend(launch.extra.iter().map(|w| format!("{pad}- {}", container(w))));
    lines.join("\n")
}
