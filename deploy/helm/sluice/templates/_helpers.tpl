{{/* The namespace of the agents. */}}
{{- define "sluice.nodes" -}}{{ .Values.namespaces.nodes }}{{- end }}

{{/* The body of `metadata`: (list $ NAME WHERE COMPONENT), WHERE system, nodes or "" (no namespace), COMPONENT "" for none. */}}
{{- define "sluice.meta" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
{{- if eq (index . 2) "system" }}
namespace: {{ $root.Release.Namespace }}
{{- else if eq (index . 2) "nodes" }}
namespace: {{ include "sluice.nodes" $root }}
{{- end }}
labels:
  app.kubernetes.io/part-of: sluice
  {{- with index . 3 }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with $root.Values.labels }}
  {{- include "sluice.texts" (list .) | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What selects the pods of a component. */}}
{{- define "sluice.selector" -}}
{app.kubernetes.io/part-of: sluice, app.kubernetes.io/component: {{ . }}}
{{- end }}

{{/* The body of a pod template's `metadata`: (list $ COMPONENT CONFIGURATION), CONFIGURATION a text that it reads only at its start. */}}
{{- define "sluice.podMeta" -}}
{{- $root := index . 0 -}}
labels:
  app.kubernetes.io/part-of: sluice
  app.kubernetes.io/component: {{ index . 1 }}
  {{- with $root.Values.labels }}
  {{- include "sluice.texts" (list .) | nindent 2 }}
  {{- end }}
{{- $annotations := deepCopy ($root.Values.podAnnotations | default dict) }}
{{- with index . 2 }}{{ $_ := set $annotations "sluice.dev/configuration" (sha256sum . | trunc 16) }}{{ end }}
{{- with $annotations }}
annotations: {{- include "sluice.texts" (list .) | nindent 2 }}
{{- end }}
{{- end }}

{{/* How an image is named: (list $ KEY). A digest counts for more than a tag. */}}
{{- define "sluice.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $image := index $images (index . 1) -}}
{{- $registry := hasKey $image "registry" | ternary $image.registry $images.registry -}}
{{- $ours := or (hasPrefix "sluice-" $image.name) (not (has (index . 1) (list "nats" "jaeger"))) -}}
{{- $tag := $image.tag | default (($ours | ternary $images.tag "") | default (index . 0).Chart.AppVersion) -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.name }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* The image of a container: (list $ KEY). */}}
{{- define "sluice.containerImage" -}}
image: {{ include "sluice.image" . }}
{{- with (index . 0).Values.images.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* What a container asks for: (list $ RESOURCES). A laptop has two cores, its control plane on them: simulated takes few. */}}
{{- define "sluice.resources" -}}
{{- $resources := deepCopy (index . 1) -}}
{{- if (index . 0).Values.simulated.enabled }}{{ $_ := set $resources.requests "cpu" "25m" }}{{ end -}}
resources: {{- toYaml $resources | nindent 2 }}
{{- end }}

{{/* Pod Security `restricted`, of a pod and of a container. */}}
{{- define "sluice.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- if eq . "nats" }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "sluice.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What the pods of services and broker have in common: (list $ COMPONENT HAS-TOKEN). Each has an account `sluice-COMPONENT`. */}}
{{- define "sluice.pod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
serviceAccountName: sluice-{{ $component }}
automountServiceAccountToken: {{ index . 2 }}
enableServiceLinks: false
{{- if and $root.Values.services.priorityClass (not (has $component (list "streams" "uninstall" "web" "jaeger"))) }}
priorityClassName: {{ $root.Values.services.priorityClass }}
{{- end }}
{{ include "sluice.podSecurity" $component }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $root.Values.services.nodeSelector }}
nodeSelector: {{- include "sluice.texts" (list .) | nindent 2 }}
{{- end }}
{{- $tolerations := $root.Values.services.tolerations }}
{{- if and (eq $component "inventory") (eq $root.Values.replicas "ha") }}
# Of a node that is gone, the one inventory starts elsewhere after seconds and not after five minutes.
{{- range list "not-ready" "unreachable" }}
{{- $tolerations = append $tolerations (dict "key" (printf "node.kubernetes.io/%s" .) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 10) }}
{{- end }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Replicas on different nodes, where there are any: COMPONENT. */}}
{{- define "sluice.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "sluice.selector" . }}
{{- end }}

{{/* Maps as one whose values are texts, of equal names the last: (list MAP...). Go would write a number as 1e+06. */}}
{{- define "sluice.texts" -}}
{{- $texts := dict }}
{{- range . }}
{{- range $name, $value := . }}{{ $_ := set $texts $name (kindIs "string" $value | ternary $value (toJson $value)) }}{{ end }}
{{- end }}
{{- toYaml $texts }}
{{- end }}

{{/* Entries of `env`: (list $ COMPONENT ENV). A setting of an operator replaces that of the template sluice.env.COMPONENT: a name
that is there twice is refused by a server-side apply, and lost by other upgrades. */}}
{{- define "sluice.env" -}}
{{- $own := include "sluice.texts" (list (index . 0).Values.env (index . 2)) | fromYaml }}
{{- range include (printf "sluice.env.%s" (index . 1)) (index . 0) | fromYamlArray }}
{{- if not (hasKey $own .name) }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- range $name, $value := $own }}
- {name: {{ $name }}, value: {{ quote $value }}}
{{- end }}
{{- end }}

{{/* Where traces go, and metrics are shown: entries of `env` and of `ports`. */}}
{{- define "sluice.otlp" -}}
{{- if .Values.tracing.jaeger }}
{{- printf "http://sluice-jaeger.%s.svc:4318" .Release.Namespace }}
{{- else }}
{{- .Values.tracing.endpoint }}
{{- end }}
{{- end }}
{{- define "sluice.tracesEnv" -}}
{{- with include "sluice.otlp" . }}
- {name: SLUICE_OTLP_ENDPOINT, value: {{ quote . }}}
{{- end }}
{{- end }}
{{- define "sluice.metricsEnv" -}}
{{- if .Values.metrics.enabled }}
- {name: SLUICE_METRICS_ADDRESS, value: "0.0.0.0:9430"}
{{- end }}
{{- end }}
{{- define "sluice.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: 9430}
{{- end }}
{{- end }}

{{/* Of services that answer gRPC's health checks at port 9420. Kubelets speak no TLS, so they ask at a port of its own, which only
says yes or no. It answers before the bus is reached: a broker that is away is no reason to restart. */}}
{{- define "sluice.grpcProbes" -}}
startupProbe:
  grpc: {port: 9420, service: liveness}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
readinessProbe:
  grpc: {port: 9420, service: readiness}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  grpc: {port: 9420, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Of services that answer HTTP: (dict "port" PORT "ready" PATH). */}}
{{- define "sluice.httpProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Namespaces whose pods are never touched, separated by commas. */}}
{{- define "sluice.exempt" -}}
{{- concat (list "kube-system" .Release.Namespace (include "sluice.nodes" .)) (.Values.exemptNamespaces | default list) | uniq | join "," }}
{{- end }}

{{/* The kubelets' root, without the first slash. */}}
{{- define "sluice.kubelet" -}}{{ trimAll "/" .Values.nodeAgent.kubeletRoot }}{{- end }}

{{/* Settings that watch and webhook have in common: entries of `env`. */}}
{{- define "sluice.podWatcherEnv" -}}
- {name: SLUICE_POD_WATCHER_NAMESPACE, value: {{ .Release.Namespace }}}
- {name: SLUICE_POD_WATCHER_HAND_OVER, value: {{ .Values.handOver }}}
{{- end }}
