{{/* Everything about who a process is on the bus and over gRPC: settings, mounts and volumes. Objects that hold it are made before
(deploy/kubernetes/credentials.py). */}}

{{- define "sluice.natsUrl" -}}
{{- .Values.nats.externalUrl | default (printf "tls://sluice-nats.%s.svc:4222" .Release.Namespace) }}
{{- end }}

{{/* A user of the bus: entries of `env`: (list $ USER). An agent's USER is "": it follows from its node. */}}
{{- define "sluice.busEnv" -}}
- {name: SLUICE_NATS_URL, value: {{ include "sluice.natsUrl" (index . 0) | quote }}}
{{- with index . 1 }}
- {name: SLUICE_NATS_USER, value: {{ . }}}
{{- end }}
- {name: SLUICE_NATS_PASSWORD_FILE, value: /etc/sluice/bus/password}
- {name: SLUICE_NATS_CA_FILE, value: /etc/sluice/ca/ca.crt}
{{- end }}
{{- define "sluice.busMounts" -}}
- {name: bus, mountPath: /etc/sluice/bus, readOnly: true}
- {name: ca, mountPath: /etc/sluice/ca, readOnly: true}
{{- end }}
{{/* Entries of `volumes`: USER. */}}
{{- define "sluice.busVolumes" -}}
- name: bus
  secret: {secretName: sluice-bus-{{ . }}, defaultMode: 0440}
- name: ca
  configMap: {name: sluice-bus-ca}
{{- end }}

{{/* A caller over gRPC. An agent has its node's certificate with its key, in one file. */}}
{{- define "sluice.rpcEnv" -}}
- {name: SLUICE_GRPC_CERTIFICATE_FILE, value: /etc/sluice/rpc/{{ . | ternary "identity.pem" "tls.crt" }}}
- {name: SLUICE_GRPC_KEY_FILE, value: /etc/sluice/rpc/{{ . | ternary "identity.pem" "tls.key" }}}
- {name: SLUICE_GRPC_CA_FILE, value: /etc/sluice/rpc-ca/ca.crt}
{{- end }}
{{- define "sluice.rpcMounts" -}}
- {name: rpc, mountPath: /etc/sluice/rpc, readOnly: true}
- {name: rpc-ca, mountPath: /etc/sluice/rpc-ca, readOnly: true}
{{- end }}
{{/* Entries of `volumes`: CALLER. */}}
{{- define "sluice.rpcVolumes" -}}
- name: rpc
  secret: {secretName: sluice-rpc-{{ . }}, defaultMode: 0440}
- name: rpc-ca
  configMap: {name: sluice-rpc-ca}
{{- end }}

{{/* The broker's certificate and users. */}}
{{- define "sluice.brokerVolumes" -}}
- name: credentials
  secret: {secretName: sluice-nats-server, defaultMode: 0440}
{{- end }}

{{/* Takes this node's password and certificate out of those of all nodes, also when they come later or change. The agent sees its
own and no other's. It is root, whose files a kubelet lets the agent alone read. */}}
{{- define "sluice.agentIdentityContainer" -}}
{{- if eq .Values.nodeAgent.credentials "secret" }}
- name: credentials
  {{- include "sluice.containerImage" (list . "nodeAgent") | nindent 2 }}
  command: [/opt/sluice/bin/own-credentials]
  args: [$(NODE_NAME), /all/bus, /own/bus/password, /all/rpc, /own/rpc/identity.pem]
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  resources:
    requests: {cpu: 5m, memory: 16Mi}
    limits: {memory: 64Mi}
  securityContext:
    runAsUser: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - {name: bus-of-all, mountPath: /all/bus, readOnly: true}
    - {name: rpc-of-all, mountPath: /all/rpc, readOnly: true}
    - {name: bus, mountPath: /own/bus}
    - {name: rpc, mountPath: /own/rpc}
{{- end }}
{{- end }}
{{- define "sluice.agentIdentityVolumes" -}}
- name: ca
  configMap: {name: sluice-bus-ca}
- name: rpc-ca
  configMap: {name: sluice-rpc-ca}
{{- range list "bus" "rpc" }}
{{- if eq $.Values.nodeAgent.credentials "secret" }}
- name: {{ . }}
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: {{ . }}-of-all
  secret: {secretName: sluice-{{ . }}-nodes, defaultMode: 0400}
{{- else }}
- name: {{ . }}
  hostPath: {path: /etc/sluice/{{ . }}, type: Directory}
{{- end }}
{{- end }}
{{- end }}
