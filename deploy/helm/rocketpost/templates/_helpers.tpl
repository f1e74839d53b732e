{{- define "rocketpost.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "rocketpost.labels" -}}
app.kubernetes.io/name: rocketpost
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "rocketpost.selector" -}}
app.kubernetes.io/name: rocketpost
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rocketpost.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The addresses of all name servers, as clients and brokers take them. */}}
{{- define "rocketpost.nameServers" -}}
{{- $name := include "rocketpost.name" . -}}
{{- range $index := until (int .Values.nameServer.replicas) -}}
{{- if $index }};{{ end -}}
{{ $name }}-namesrv-{{ $index }}.{{ $name }}-namesrv.{{ $.Release.Namespace }}.svc:9876
{{- end -}}
{{- end }}

{{- define "rocketpost.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "rocketpost.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Keeps pods of one kind on different machines, if there are enough. Takes the context and the component. */}}
{{- define "rocketpost.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "rocketpost.selector" .context | nindent 14 }}
              app.kubernetes.io/component: {{ .component }}
{{- end }}
