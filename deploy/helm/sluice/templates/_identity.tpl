{{/* Everything about who a process is on the bus and over gRPC: settings, mounts and volumes. The callout fills the objects, which
identity.yaml ships empty; a pod that mounts one waits until it is filled. */}}

{{- define "sluice.natsUrl" -}}
{{- .Values.nats.externalUrl | default (printf "tls://sluice-nats.%s.svc:4222" .Release.Namespace) }}
{{- end }}

{{/* A user of the bus: entries of `env`: (list $ USER). An agent's USER is "": it follows from its node. */}}
{{- define "sluice.busEnv" -}}
- {name: SLUICE_NATS_URL, value: {{ include "sluice.natsUrl" (index . 0) | quote }}}
{{- with index . 1 }}
- {name: SLUICE_NATS_USER, value: {{ . }}}
{{- end }}
- {name: SLUICE_NATS_TOKEN_FILE, value: /etc/sluice/bus/token}
- {name: SLUICE_NATS_CA_FILE, value: /etc/sluice/bus/ca.crt}
{{- end }}
{{- define "sluice.busMounts" -}}
- {name: bus, mountPath: /etc/sluice/bus, readOnly: true}
{{- end }}
{{/* Entries of `volumes`: the token that is the password, and whom to trust. */}}
{{- define "sluice.busVolumes" -}}
- name: bus
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {audience: sluice-bus, expirationSeconds: 3600, path: token}
      - configMap: {name: {{ include "sluice.busAuthorities" . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- define "sluice.busAuthorities" -}}
{{- .Values.nats.externalUrl | empty | ternary "sluice-bus-authorities" "sluice-bus-external" }}
{{- end }}

{{/* A caller over gRPC. */}}
{{- define "sluice.rpcEnv" -}}
- {name: SLUICE_GRPC_CERTIFICATE_FILE, value: /etc/sluice/grpc/tls.crt}
- {name: SLUICE_GRPC_KEY_FILE, value: /etc/sluice/grpc/tls.key}
- {name: SLUICE_GRPC_CA_FILE, value: /etc/sluice/grpc/ca.crt}
{{- end }}
{{- define "sluice.rpcMounts" -}}
- {name: grpc, mountPath: /etc/sluice/grpc, readOnly: true}
{{- end }}
{{/* Entries of `volumes`: CALLER; an agent's is "": it makes its own certificate, and publishes it. */}}
{{- define "sluice.rpcVolumes" -}}
- name: grpc
  projected:
    defaultMode: 0440
    sources:
      {{- with . }}
      - secret: {name: sluice-grpc-{{ . }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
      {{- end }}
      - configMap: {name: sluice-grpc-ca, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}

{{/* Secrets that the callout fills; of these the broker mounts one. */}}
{{- define "sluice.identitySecrets" -}}
sluice-bus-keys sluice-nats-keys sluice-grpc-authority sluice-grpc-allocator sluice-grpc-inventory sluice-grpc-console sluice-grpc-operator sluice-grpc-web
{{- end }}
