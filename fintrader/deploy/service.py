"""A deployment as a service that starts again by itself: `fintrader paper RUN ... --install`.

Writes a systemd unit for this machine and user, and a Kubernetes manifest. Neither holds a secret:
both take the environment from a place that only its owner reads.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fintrader.config import split_address
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import DeployError
from fintrader.files import write_text

_UNIT = """\
[Unit]
Description=fintrader deployment {name}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=20

[Service]
WorkingDirectory={place}
Environment={path}
EnvironmentFile=-%h/.config/fintrader/{name}.env
ExecStart={command}
# SIGTERM goes to the supervisor, which passes it on; a status of 130 or 143 is a person's stop.
KillMode=mixed
TimeoutStopSec=90
SuccessExitStatus=130 143
Restart=on-failure
RestartSec=30

[Install]
WantedBy=default.target
"""

_MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {title}
  namespace: fintrader
  labels:
    app.kubernetes.io/name: fintrader
    app.kubernetes.io/component: {title}
spec:
  replicas: 1
  strategy:
    type: Recreate  # two would trade one account
  selector:
    matchLabels:
      app.kubernetes.io/name: fintrader
      app.kubernetes.io/component: {title}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: fintrader
        app.kubernetes.io/component: {title}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 90
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: loop
        image: fintrader:cpu
        args: {args}
        ports:
        - name: gauges
          containerPort: {port}
        workingDir: /data
        envFrom:
        - secretRef:
            name: {title}
        env:
        - name: XDG_STATE_HOME
          value: /data/state
        - name: FINTRADER_HOME
          value: /data/fintrader
        - name: FINTRADER_CACHE
          value: /data/tensors
        resources:
          requests:
            cpu: 250m
            memory: 1Gi
          limits:
            memory: 4Gi
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        volumeMounts:
        - name: data
          mountPath: /data
        - name: tmp
          mountPath: /tmp
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: fintrader-data
      - name: tmp
        emptyDir:
          sizeLimit: 1Gi
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {title}
  namespace: fintrader
  labels:
    app.kubernetes.io/name: fintrader
    app.kubernetes.io/component: {title}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: fintrader
      app.kubernetes.io/component: {title}
  policyTypes:
  - Ingress
  - Egress
  ingress:
  - from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: monitoring
    ports:
    - protocol: TCP
      port: {port}
  egress:
  - ports:
    - protocol: TCP
      port: 443
"""
"""A pod that is started again wherever it ends, and its network access: Prometheus reads its
gauges."""
_PORT = 9109
"""Port of the gauges in a pod, unless the settings have another."""


def write_service(name: str, run: str, words: Sequence[str], settings: PaperSettings) -> str:
    """Write the files of a service next to a deployment; return the remaining steps, in lines.

    words: the command after `fintrader`, with `run`, which for `live` is a deployment. Raises
    DeployError for addresses of alerts in the settings, which may be secrets.
    """
    if settings.alerts.urls or settings.alerts.heartbeat:
        raise DeployError(
            "a service holds no secrets, and alerts.urls and alerts.heartbeat may be some;"
            " leave them out, and put FINTRADER_ALERT_URLS and FINTRADER_ALERT_HEARTBEAT into its"
            " environment"
        )
    folder = Path(settings.deployments_dir).resolve() / name / "service"
    command = " ".join(map(_quote, [sys.executable, "-P", "-m", "fintrader", *words]))
    unit = folder / f"fintrader-{name}.service"
    manifest = folder / "kubernetes.yaml"
    place = str(Path.cwd()).replace("%", "%%")
    path = _quote(f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}")
    write_text(unit, _UNIT.format(name=name, place=place, path=path, command=command))
    kind = "run" if words[0] == "paper" else "deployment"
    there = f"{kind}s/{Path(run).name}"
    inside = [words[0], there if kind == "run" else run, *words[2:]]
    port = split_address(settings.metrics or "0")[1] or _PORT
    # Of options given twice the last one counts.
    inside += ["--deployments-dir", "deployments", "--metrics", f"0.0.0.0:{port}"]
    # Kubernetes allows lower-case letters, digits and hyphens.
    secret = f"fintrader-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
    write_text(manifest, _MANIFEST.format(title=secret, args=json.dumps(inside), port=port))
    variables = f"~/.config/fintrader/{name}.env"
    return (
        f"{unit}: keys and alert addresses go into {variables} (NAME=value, chmod 600);"
        f" then `systemctl --user enable --now {unit}`, and `loginctl enable-linger` once\n"
        f"{manifest}: `kubectl -n fintrader create secret generic {secret} --from-env-file"
        f" {variables}`, copy the {kind} to /data/{there} of its disk,"
        f" then `kubectl apply -f {manifest}`"
    )


def _quote(word: str) -> str:
    """Quote a word of a command line of systemd, which gives % and $ other meanings."""
    escaped = re.sub(r'(["\\])', r"\\\1", word).replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
