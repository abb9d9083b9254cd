//! A Kubernetes manifest that serves a model.

use super::compose::{arguments, list};
use super::launch::Launch;
use super::quote::{comment, object_name, yaml};
use super::warm_up::{HEALTH, START_SECONDS, script};

/// Deployment and service. The folder is expected on a volume claim called `models`; the launch line must be
/// that of `/models/NAME`.
pub fn kubernetes(launch: &Launch) -> String {
    let engine = launch.engine;
    let port = launch.port;
    // Quoted: a name such as `true` or `1e3` is no text in YAML.
    let name = yaml(&object_name(&launch.served_name));
    let warm = script(launch, &format!("http://127.0.0.1:{port}"));
    format!(
        "# {title} {version} serving {served}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  replicas: 1
  # A second server would not fit the same GPUs while the first still runs
  strategy: {{type: Recreate}}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: server
          image: {image}
          command: {program}
          args:
{arguments}
          env:
            # Nothing is fetched: the folder is all that is served
            - {{name: HF_HUB_OFFLINE, value: \"1\"}}
          ports:
            - {{name: http, containerPort: {port}}}
          resources:
            limits: {{nvidia.com/gpu: {gpus}}}
          lifecycle:
            # Probes begin once the first request was answered: no client waits for kernels to compile
            postStart:
              exec:
                command: [\"timeout\", \"{START_SECONDS}\", \"/bin/sh\", \"-c\", {warm}]
          readinessProbe:
            httpGet: {{path: {HEALTH}, port: http}}
            periodSeconds: 5
          livenessProbe:
            httpGet: {{path: {HEALTH}, port: http}}
            periodSeconds: 20
            failureThreshold: 6
          volumeMounts:
            - {{name: models, mountPath: /models, readOnly: true}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: models
          persistentVolumeClaim: {{claimName: models, readOnly: true}}
        # Shared memory for the processes of a server with several GPUs
        - name: shm
          emptyDir: {{medium: Memory}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - {{name: http, port: {port}, targetPort: http}}
",
        title = engine.title(),
        version = engine.version(),
        served = comment(&launch.served_name),
        image = engine.image(),
        program = list(&engine.program(&launch.model)),
        arguments = arguments(launch, 12),
        gpus = launch.gpus,
        warm = yaml(&warm),
    )
}
